//! The part of a Kubernetes API server that kube-proxy needs: lists of services and endpoint slices
//! that never change, and one node. Everything else is not found.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};
use nix::sys::socket::{Shutdown, shutdown};
use serde_json::{Value, json};

use crate::Machine;

/// Where it listens: on the loopback of the node.
const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 6443);

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub(super) struct ApiServer {
    listener: Arc<TcpListener>,
    thread: Option<JoinHandle<()>>,
}

/// Objects by path.
type Objects = BTreeMap<String, Value>;

impl ApiServer {
    /// Serves `objects` on `machine`. A list has `items`, and its watch reports no event.
    pub(super) fn start(machine: &Machine, objects: Objects) -> Result<Self> {
        let listener = machine
            .run(|| TcpListener::bind(ADDRESS))
            .context("cannot serve the Kubernetes API")?;
        let listener = Arc::new(listener);
        let accepting = Arc::clone(&listener);
        let objects = Arc::new(objects);
        let thread = thread::spawn(move || {
            while let Ok((client, _)) = accepting.accept() {
                let objects = Arc::clone(&objects);
                // It ends when the client does.
                thread::spawn(move || serve(client, &objects));
            }
        });
        Ok(Self {
            listener,
            thread: Some(thread),
        })
    }

    /// Returns the URL of the server, for clients on the same machine.
    pub(super) fn url() -> String {
        format!("http://{ADDRESS}")
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        // Unblocks the accept.
        let _ = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Answers the requests of one connection.
fn serve(client: TcpStream, objects: &Objects) -> std::io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let mut writer = client;
    while let Some((method, target)) = request(&mut reader)? {
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        match objects.get(path) {
            Some(_) if query.contains("watch=true") => {
                write!(
                    writer,
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
                )?;
            }
            Some(object) if method == "GET" => answer(&mut writer, "200 OK", object)?,
            _ => {
                let failure = json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure",
                                      "reason": "NotFound", "code": 404 });
                answer(&mut writer, "404 Not Found", &failure)?;
            }
        }
    }
    Ok(())
}

fn answer(writer: &mut TcpStream, status: &str, body: &Value) -> std::io::Result<()> {
    let body = body.to_string();
    let length = body.len();
    write!(
        writer,
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// Reads method and target of the next request, and skips its headers and body. Returns `None` at
/// the end of the connection.
fn request(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<(String, String)>> {
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let mut length = 0;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        let (name, value) = header.split_once(':').unwrap_or_default();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    std::io::copy(&mut reader.take(length), &mut std::io::sink())?;
    let mut words = first.split_whitespace().map(str::to_owned);
    Ok(words.next().zip(words.next()))
}
