"""Looks after datasets on disk: packs them, and draws them."""
