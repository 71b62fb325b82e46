"""The boundary of the public interface: arguments are checked, and every error is a MemWalError."""
