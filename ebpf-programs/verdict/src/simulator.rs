//! A node of ordinary maps.
