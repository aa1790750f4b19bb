"""What a vendor is made of: fields, polled commands, line streams, system files, processes."""
