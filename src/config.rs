//! The configuration file: schema, defaults, validation with exact messages.
