//! Sources: turn the outside (files, later the API) into model changes. A source never ranks.
