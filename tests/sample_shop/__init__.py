"""An app of a user, as tests need one: ledger tasks and plain tasks side by side."""
