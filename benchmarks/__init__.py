"""The scripts behind the figures in the documents, in rooms by what they judge: `python -m benchmarks.ROOM.SCRIPT`."""
