//! Overload: more concurrent requests than the agent accepts; each succeeds or gets code 11.

use std::collections::BTreeSet;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::*;

const PODS: usize = 500;

fn name(number: usize) -> String {
    format!("pod{number}")
}

fn attached(agent: &Agent) -> BTreeSet<String> {
    let views: Vec<AttachmentView> = agent.get(path::ATTACHMENTS);
    views.into_iter().map(|view| view.container_id).collect()
}

/// Sends one ADD as a plugin does. Returns `None` on success, else the error code.
async fn add(socket: PathBuf, number: usize) -> Option<u32> {
    let config = json!({ "cniVersion": "1.1.0", "name": "pods", "type": "viaduct" });
    let request = request("viaduct", &name(number), &config);
    let body = serde_json::to_string(&request).unwrap();
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: v\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        CniVerb::Add.path(),
        body.len()
    );
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all((head + &body).as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let refused = || serde_json::from_str::<ErrorBody>(body).unwrap().code;
    (!head.starts_with("HTTP/1.1 200 ")).then(refused)
}

/// Sends ADDs for these pods concurrently, and returns the result of each.
fn add_all(agent: &Agent, numbers: impl Iterator<Item = usize>) -> Vec<Option<u32>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    runtime.block_on(async {
        let socket = agent.client.socket();
        let requests: Vec<_> = numbers
            .map(|number| tokio::spawn(add(socket.to_owned(), number)))
            .collect();
        let mut answers = Vec::new();
        for request in requests {
            answers.push(request.await.unwrap());
        }
        answers
    })
}

/// behaviour A1
#[test]
fn five_hundred_concurrent_adds_succeed_or_get_code_11() {
    let agent = Agent::start(&["--pod-cidr", "10.1.0.0/20"]);
    for number in 0..PODS {
        agent
            .fake
            .add_netns(&format!("/run/netns/{}", name(number)));
    }
    let mut waiting: Vec<usize> = (0..PODS).collect();
    while !waiting.is_empty() {
        let answers = add_all(&agent, waiting.iter().copied());
        let before = waiting.len();
        let mut answers = answers.into_iter();
        waiting.retain(|number| match answers.next().unwrap() {
            None => false,
            Some(code) => {
                assert_eq!(code, api::TRY_AGAIN_LATER, "{}", name(*number));
                true
            }
        });
        assert!(waiting.len() < before, "no ADD of this round succeeded");
        let refused = waiting.iter().copied().map(name).collect();
        let attached = attached(&agent);
        assert_eq!(attached.len(), PODS - waiting.len());
        assert!(
            attached.is_disjoint(&refused),
            "a refused ADD has left an attachment"
        );
    }
    let leases: Vec<Lease> = agent.get(path::LEASES);
    let addresses: BTreeSet<String> = leases.into_iter().map(|lease| lease.address).collect();
    assert_eq!(addresses.len(), PODS, "an address is assigned twice");
}
