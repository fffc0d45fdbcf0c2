//! Fuzz target for answers and notifications of the kernel: rtnetlink, nftables, connection
//! tracking, IPsec, and tables of iptables.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| kernel::testing::answers(bytes));
