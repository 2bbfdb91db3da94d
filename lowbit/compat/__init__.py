"""The interfaces of other libraries, so that code written for them needs another import line only."""
