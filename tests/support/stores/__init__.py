"""Object stores for tests: emulators, and stores that fail on demand."""
