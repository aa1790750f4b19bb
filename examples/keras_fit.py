"""Keras 3: each epoch's row has what the devices did meanwhile. Runs on CPU with any backend, without a download.

pip install accelmetrics keras torch
KERAS_BACKEND=torch python examples/keras_fit.py [table]
"""

import sys

import keras
import numpy as np

from accelmetrics.integrations.keras import DeviceMonitor


def main(table="log.csv"):
    model = keras.Sequential([keras.layers.Dense(1024)])
    model.compile(optimizer="sgd", loss="mse")
    numbers = np.random.default_rng(0).random((1280, 1024), dtype="float32")
    monitor = DeviceMonitor(interval=0.1)
    history = model.fit(numbers, 2 * numbers, batch_size=256, epochs=4, verbose=0, callbacks=[monitor, keras.callbacks.CSVLogger(table)])
    for name, values in history.history.items():
        print(name, values)


if __name__ == "__main__":
    main(*sys.argv[1:])
