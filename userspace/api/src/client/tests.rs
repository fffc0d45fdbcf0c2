//! The client against a minimal HTTP server.

use std::io::BufRead;
use std::os::unix::net::UnixListener;
use std::thread;

use tempfile::TempDir;

use super::*;

/// Starts a server that sends `answer` on one connection; its thread returns the request.
fn agent(answer: &'static str) -> (TempDir, PathBuf, thread::JoinHandle<String>) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let handle = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = io::BufReader::new(stream.try_clone().unwrap());
        let mut request = String::new();
        let mut length = 0;
        while !request.ends_with("\r\n\r\n") {
            let start = request.len();
            reader.read_line(&mut request).unwrap();
            if let Some(value) = request[start..].strip_prefix("Content-Length: ") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
        request + &String::from_utf8(body).unwrap()
    });
    (directory, socket, handle)
}

#[test]
fn a_post_carries_its_length_and_asks_to_close() {
    let (_directory, socket, handle) = agent("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue");
    let reply = Client::new(socket).post("/v1/x", &[1, 2]).unwrap();
    assert!(reply.decode::<bool>().unwrap());
    let request = handle.join().unwrap();
    assert!(request.starts_with("POST /v1/x HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("Connection: close\r\n"), "{request}");
    assert!(
        request.ends_with("Content-Length: 5\r\n\r\n[1,2]"),
        "{request}"
    );
}

#[test]
fn a_refusal_shows_the_agents_error_message() {
    let (_directory, socket, _handle) = agent(
        "HTTP/1.1 409 Conflict\r\nContent-Length: 30\r\n\r\n{\"code\":100,\"message\":\"taken\"}",
    );
    let error = Client::new(socket).get("/").unwrap().decode::<bool>();
    assert_eq!(error.unwrap_err().to_string(), "taken");
}

#[test]
fn an_error_without_an_error_body_shows_http_status_and_body() {
    let reply = Reply {
        status: 502,
        body: b"bad gateway\n".to_vec(),
    };
    let error = reply.error();
    assert_eq!(error.code, 999);
    assert_eq!(
        error.to_string(),
        "the agent responded with HTTP status 502 (bad gateway)"
    );
}

#[test]
fn no_socket_means_unreachable_and_names_it() {
    let error = Client::new("/nonexistent/x.sock").get("/").unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }));
    assert!(error.to_string().contains("/nonexistent/x.sock"));
}

#[test]
fn a_socket_without_a_listener_means_unreachable() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("sock");
    drop(UnixListener::bind(&socket).unwrap());
    let error = Client::new(socket).get("/").unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }));
}

/// behaviour A1: an agent that hangs never hangs the runtime.
#[test]
fn a_full_backlog_means_unreachable_within_a_second() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("sock");
    let listener = UnixListener::bind(&socket).unwrap();
    // Fill the backlog with connections that are never accepted, until the next one blocks.
    let mut waiting = Vec::new();
    while let Ok(stream) = connect(&socket, Duration::from_millis(500)) {
        waiting.push(stream);
    }
    let (start, before) = (Instant::now(), wait_for_cpu());
    let error = Client::new(socket).get("/").unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    let waited = wait_for_cpu().saturating_sub(before);
    let took = start.elapsed().saturating_sub(waited);
    assert!(took < Duration::from_secs(1), "{took:?}");
    drop((listener, waiting));
}

/// Returns how long this thread was runnable and waited for a CPU, which on a busy machine is no
/// fault of the client: the second number of `schedstat`, in nanoseconds.
fn wait_for_cpu() -> Duration {
    let counted = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = counted.split(' ').nth(1);
    Duration::from_nanos(waited.and_then(|waited| waited.parse().ok()).unwrap_or(0))
}

/// behaviour A1: the whole exchange has a deadline.
#[test]
fn a_silent_agent_is_a_timeout() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    let client = Client::new(socket).with_deadline(Duration::from_millis(50));
    let error = client.get("/").unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
}

/// behaviour A4: an agent that dies in the middle leaves an error, not half an answer.
#[test]
fn an_agent_that_dies_in_the_middle_is_a_broken_connection() {
    let (_directory, socket, _handle) = agent("HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n{");
    let error = Client::new(socket).get("/").unwrap_err();
    assert!(matches!(error, ClientError::Broken { .. }), "{error}");
}
