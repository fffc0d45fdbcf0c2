//! An agent of the tests: answers each request as a function decides, and records it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;

use super::{Agent, AgentState, Client, Instant, thread, watch};

/// A request to the agent.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) body: String,
}

/// An answer of the agent.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    status: u16,
    body: String,
}

impl Answer {
    /// Returns an answer with a JSON body.
    pub(crate) fn json(status: u16, body: &str) -> Self {
        let body = body.to_owned();
        Self { status, body }
    }

    /// Returns an error response with a CNI error code.
    pub(crate) fn refusal(code: u32, message: &str) -> Self {
        let body = serde_json::json!({ "code": code, "message": message });
        Self::json(409, &body.to_string())
    }
}

/// The agent. Its thread ends with the process of the tests.
pub(crate) struct FakeAgent {
    directory: TempDir,
    requests: Arc<Mutex<Vec<Request>>>,
    state: watch::Sender<AgentState>,
    attached: watch::Sender<u64>,
}

impl FakeAgent {
    /// Starts an agent that answers with `answer`.
    pub(crate) fn start(mut answer: impl FnMut(&Request) -> Answer + Send + 'static) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("sock")).unwrap();
        let requests = Arc::<Mutex<Vec<Request>>>::default();
        let record = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let request = receive(&stream);
                let Answer { status, body } = answer(&request);
                record.lock().unwrap().push(request);
                let length = body.len();
                let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n\r\n");
                stream.write_all((head + &body).as_bytes()).unwrap();
            }
        });
        let state = AgentState {
            generation: 1,
            is_serving: true,
            since: Instant::now(),
        };
        Self {
            directory,
            requests,
            state: watch::Sender::new(state),
            attached: watch::Sender::new(0),
        }
    }

    /// Returns a client of the agent, which serves in its first generation.
    pub(crate) fn client(&self) -> Agent {
        Agent {
            client: Client::new(self.directory.path().join("sock")),
            state: self.state.subscribe(),
            attached: self.attached.subscribe(),
        }
    }

    /// Replaces the agent by one of the next generation.
    pub(crate) fn restart(&self) {
        self.state.send_modify(|state| state.generation += 1);
    }

    /// Returns the method and the path of all requests since the last call.
    pub(crate) fn requested(&self) -> Vec<String> {
        let requests = self.take().into_iter();
        requests
            .map(|one| format!("{} {}", one.method, one.path))
            .collect()
    }

    /// Returns all requests since the last call.
    pub(crate) fn take(&self) -> Vec<Request> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }
}

fn receive(stream: &UnixStream) -> Request {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{head}");
    }
    let length = (head.lines())
        .find_map(|line| line.strip_prefix("Content-Length: "))
        .map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let mut words = head.split(' ').map(str::to_owned);
    Request {
        method: words.next().unwrap(),
        path: words.next().unwrap(),
        body: String::from_utf8(body).unwrap(),
    }
}

/// Runs a future to its end, on a runtime as that of the program.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}
