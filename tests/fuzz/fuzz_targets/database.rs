//! Fuzz target for the agent's database: values of records and networks, and damaged files.

#![no_main]

use std::panic;

use libfuzzer_sys::fuzz_target;

fuzz_target!(
    init: {
        // The database library may panic on a damaged file; the store catches that. Any other panic
        // ends the process, as without this hook.
        let end = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !store::is_catching_panics() {
                end(panic);
            }
        }));
    },
    |bytes: &[u8]| {
        store::testing::values(bytes);
        store::testing::database(bytes);
    }
);
