//! Replay of the fuzz corpus: requests and configurations of runtimes, and inputs that once broke a
//! parser.

use model::testing::{Damage, damaged};
use proptest::prelude::*;

/// Returns name and text of the files of a fuzz target's corpus.
fn corpus(target: &str) -> Vec<(String, String)> {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let files = model::testing::corpus(target).into_iter();
    files.map(|(name, bytes)| (name, text(bytes))).collect()
}

#[test]
fn every_request_of_the_corpus_is_parsed_or_refused() {
    for (_, text) in corpus("request") {
        cni::testing::request(&text);
    }
    for (_, text) in corpus("list").into_iter().chain(corpus("api")) {
        cni::testing::texts(&text);
    }
}

/// Returns the texts of a fuzz target's corpus.
fn texts(target: &str) -> Vec<String> {
    corpus(target).into_iter().map(|(_, text)| text).collect()
}

fn damaged_text(text: &str, damages: &[Damage]) -> String {
    String::from_utf8_lossy(&damaged(text.as_bytes(), damages)).into_owned()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn damaged_requests_and_lists_are_parsed_or_refused(
        request in proptest::sample::select(texts("request")),
        list in proptest::sample::select(texts("list")),
        damages in proptest::collection::vec(any::<Damage>(), 1..8),
    ) {
        cni::testing::request(&damaged_text(&request, &damages));
        cni::testing::texts(&damaged_text(&list, &damages));
    }
}

/// Prefixes of corpus files with runtimes' requests: recorded, or written according to their
/// sources.
const CLIENTS: [&str; 6] = [
    "containerd-",
    "podman-",
    "nomad-",
    "crio-",
    "multus-",
    "nerdctl-",
];

/// Requests of real runtimes must parse, not only not panic.
#[test]
fn every_request_of_a_runtime_parses() {
    let recorded: Vec<_> = corpus("request")
        .into_iter()
        .filter(|(path, _)| CLIENTS.iter().any(|client| path.contains(client)))
        .collect();
    assert!(recorded.len() >= 24, "{recorded:?}");
    for (path, text) in recorded {
        let (line, config) = text.split_once('\n').unwrap();
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        let environment = cni::Environment {
            command: words[1].parse().unwrap(),
            container_id: "c1".to_owned(),
            netns: "/run/netns/c1".to_owned(),
            ifname: "eth0".to_owned(),
            args: words[2].to_owned(),
            path: "/opt/cni/bin".to_owned(),
        };
        let plugin = cni::Plugin::of_program(words[0]);
        let read = cni::Request::read(plugin, &environment, config);
        assert!(read.is_ok(), "{path}: {read:?}");
    }
}
