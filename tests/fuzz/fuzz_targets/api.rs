//! Fuzz target for the bodies of CNI requests to the agent.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(request) = serde_json::from_slice::<api::CniRequest>(bytes) else {
        return;
    };
    let line = format!("{} ADD {}", request.plugin, request.args);
    cni::testing::request(&format!("{line}\n{}", request.config.get()));
});
