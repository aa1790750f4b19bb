"""A small HTTP server for scrapes: safe against slow and hostile clients, and cheap for the program that it lives in."""
