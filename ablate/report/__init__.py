"""What a sweep shows: tables and their formats, looks, costs, the live view."""
