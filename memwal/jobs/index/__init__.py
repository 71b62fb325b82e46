"""Index jobs: catch-up, parallel builds, choice of maintained indexes, and model migration."""
