//! The example of the crate, beside a server of the API with more pods than a page has.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(
    clippy::disallowed_methods,
    reason = "the example is a program of its own"
)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::thread;

use viaduct_client::{AddressView, AttachmentView, PageQuery, PodView};

/// Number of pods: two full pages and one with a few.
const PODS: usize = 107;

fn pods() -> Vec<AttachmentView> {
    let pods = (0..PODS).map(|number| AttachmentView {
        network: "default".to_owned(),
        container_id: format!("c{number:03}"),
        ifname: "eth0".to_owned(),
        pod: (number % 2 == 0).then(|| PodView {
            namespace: "shop".to_owned(),
            name: format!("web-{number}"),
        }),
        addresses: vec![AddressView {
            address: format!("10.0.0.{number}/24"),
            gateway: None,
        }],
        ..AttachmentView::default()
    });
    pods.collect()
}

/// Answers one request as the agent does.
fn answer(mut stream: UnixStream) {
    let mut head = String::new();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head).unwrap();
    }
    let path = head.split(' ').nth(1).unwrap();
    let (path, query) = path.split_once('?').unwrap();
    assert_eq!(path, "/v1/attachments");
    let mut page = PageQuery::default();
    for pair in query.split('&') {
        match pair.split_once('=').unwrap() {
            ("limit", limit) => page.limit = Some(limit.parse().unwrap()),
            ("after", after) => page.after = Some(after.to_owned()),
            other => panic!("{other:?}"),
        }
    }
    let body = serde_json::to_string(&page.select(pods())).unwrap();
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
}

#[test]
fn the_example_of_the_client_lists_the_pods_page_by_page() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("viaduct.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = thread::spawn(move || {
        for stream in listener.incoming().take(PODS / 50 + 1) {
            answer(stream.unwrap());
        }
    });
    // Cargo builds the examples of a package with its tests.
    let tests = std::env::current_exe().unwrap();
    let example = tests.ancestors().nth(2).unwrap().join("examples/pods");
    let output = Command::new(example).arg(&socket).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), PODS);
    assert_eq!(lines[0], "shop/web-0 eth0 10.0.0.0/24");
    assert_eq!(lines[PODS - 2], "c105 eth0 10.0.0.105/24");
    server.join().unwrap();
}
