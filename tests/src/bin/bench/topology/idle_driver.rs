//! A network driver of Docker that does nothing: it answers each call at once, and the interfaces
//! of its containers exist before they start. What `docker run` takes on a network of it is
//! dockerd's own part, which no driver can shorten.

use std::io::Write as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use anyhow::Result;
use e2e::Machine;
use e2e::http_server::Connection;
use serde_json::{Value, json};

use crate::plan::print_line;

/// The socket by which dockerd finds the driver `idle`.
const SOCKET: &str = "/run/docker/plugins/idle.sock";

/// Serves the driver on a node until the process ends. dockerd asks one thing at a time.
pub(crate) fn serve(node: &Machine) -> Result<()> {
    let listener = node.run(|| UnixListener::bind(SOCKET))?;
    let mut driver = IdleDriver {
        node: node.clone(),
        interfaces: 0,
    };
    driver.prepare()?;
    thread::spawn(move || {
        for stream in listener.incoming() {
            if let Err(error) = stream.map_err(Into::into).and_then(|it| driver.serve(it)) {
                print_line(&format!("the idle driver: {error:#}"));
            }
        }
    });
    Ok(())
}

struct IdleDriver {
    node: Machine,
    /// Number of interfaces made so far. The last one is for the next container.
    interfaces: u32,
}

impl IdleDriver {
    /// Answers one request, and closes the connection.
    fn serve(&mut self, mut stream: UnixStream) -> Result<()> {
        let Some(request) = Connection::new(&stream).request()? else {
            return Ok(());
        };
        let answer = self.answer(&request.path)?.to_string();
        let length = answer.len();
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{answer}"
        )?;
        Ok(())
    }

    /// Returns the answer of a method (libnetwork's remote driver API).
    fn answer(&mut self, method: &str) -> Result<Value> {
        Ok(match method {
            "/Plugin.Activate" => json!({"Implements": ["NetworkDriver"]}),
            "/NetworkDriver.GetCapabilities" => json!({"Scope": "local"}),
            "/NetworkDriver.Join" => json!({
                "InterfaceName": {"SrcName": self.interface(), "DstPrefix": "eth"},
                "DisableGatewayService": true,
            }),
            "/NetworkDriver.Leave" => {
                self.prepare()?;
                json!({})
            }
            _ => json!({}),
        })
    }

    /// Makes the interface of the next container.
    fn prepare(&mut self) -> Result<()> {
        self.interfaces += 1;
        let name = self.interface();
        let link = format!("ip link add {name} type veth peer name {name}-peer");
        self.node.call(&link)?;
        Ok(())
    }

    fn interface(&self) -> String {
        format!("idle{}", self.interfaces)
    }
}
