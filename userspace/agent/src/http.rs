//! The API: sockets, connections, routes, and the answers in the API's types.

pub(crate) mod answers;
pub(crate) mod body;
pub(crate) mod connections;
pub(crate) mod failure;
pub(crate) mod flows;
pub(crate) mod hostports;
pub(crate) mod limits;
pub(crate) mod metrics_listener;
pub(crate) mod migration;
pub(crate) mod names;
pub(crate) mod peers;
pub(crate) mod policies;
pub(crate) mod refusal_log;
pub(crate) mod routes;
pub(crate) mod server;
pub(crate) mod socket;
pub(crate) mod view;
pub(crate) mod web_page;
pub(crate) mod why;
pub(crate) mod write_timeout;
