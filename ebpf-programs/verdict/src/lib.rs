//! TBD
#![no_std]
