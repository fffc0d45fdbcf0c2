//! Calls of netavark over the API.

use super::*;

fn network() -> Value {
    json!({
        "name": "apps", "id": "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9",
        "driver": "viaduct", "dns_enabled": false, "internal": false, "ipv6_enabled": false,
        "network_interface": "br9", "subnets": [{ "subnet": "10.90.0.0/24", "gateway": "10.90.0.1" }],
    })
}

fn container(network: &Value) -> Value {
    json!({
        "container_id": "c1", "container_name": "web", "network": network,
        "network_options": { "interface_name": "eth0", "static_ips": ["10.90.0.50"] },
        "port_mappings": [{ "container_port": 80, "host_port": 8080, "host_ip": "", "protocol": "tcp", "range": 2 }],
    })
}

fn call(agent: &Agent, verb: CniVerb, input: &Value) -> Result<String, ErrorBody> {
    agent.cni_as(api::NETAVARK, verb, "c1", input)
}

#[test]
fn a_container_of_netavark_is_an_attachment_with_its_name() {
    let agent = Agent::start(&FLAGS);
    agent.fake.add_netns("/run/netns/c1");
    let input = container(&network());
    let status: Value = serde_json::from_str(&call(&agent, CniVerb::Add, &input).unwrap()).unwrap();
    let subnets = &status["interfaces"]["eth0"]["subnets"];
    assert_eq!(
        *subnets,
        json!([{ "gateway": "10.90.0.1", "ipnet": "10.90.0.50/24" }])
    );
    let views: Vec<AttachmentView> = agent.get(path::ATTACHMENTS);
    let pod = views[0].pod.as_ref().unwrap();
    assert_eq!(
        (pod.namespace.as_str(), pod.name.as_str()),
        ("podman", "web")
    );
    assert_eq!(
        (views[0].network.as_str(), views[0].hostports.len()),
        ("apps", 2)
    );
    for _ in 0..2 {
        assert_eq!(call(&agent, CniVerb::Del, &input).unwrap(), "");
    }
    let views: Vec<AttachmentView> = agent.get(path::ATTACHMENTS);
    assert!(views.is_empty());
    assert_eq!(call(&agent, CniVerb::Check, &input).unwrap_err().code, 4);
}

#[test]
fn a_network_that_podman_creates_avoids_the_subnets_of_the_agent() {
    let agent = Agent::start(&FLAGS);
    let create = |id: &str| {
        let mut network = network();
        network["id"] = json!(id);
        network["subnets"] = Value::Null;
        let reply = agent.client.post(path::NETAVARK_CREATE, &network).unwrap();
        reply.decode::<Value>().unwrap()
    };
    let id = "0000000000aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9";
    let first = create(id);
    agent.fake.add_netns("/run/netns/c1");
    let input = container(&first);
    let refused = call(&agent, CniVerb::Add, &input).unwrap_err();
    assert!(
        refused.message.contains("10.90.0.50"),
        "of another subnet: {refused}"
    );
    let mut input = input;
    input["network_options"]["static_ips"] = Value::Null;
    call(&agent, CniVerb::Add, &input).unwrap();
    assert_ne!(create(id)["subnets"], first["subnets"]);

    let mut vrf = network();
    vrf["options"] = json!({ "vrf": "red" });
    let reply = agent.client.post(path::NETAVARK_CREATE, &vrf).unwrap();
    assert!(
        reply.error().message.contains("option vrf: red"),
        "{reply:?}"
    );
}
