"""The record of a result, and its forms in files: rows of results, journals' lines and bundles' manifests."""
