//! Networks, and who is in them.

use super::*;

#[test]
fn networks_are_named_and_numbered_once() {
    let red = "[[network]]\nname = \"red\"\nvid = 10\n";
    let in_red = |extra: &str| format!("{red}{}", port_with(extra));
    let cases = [
        (
            port_with("network = \"red\""),
            "4: port[0] \"vm1\".network = \"red\": there is no such network; add a [[network]] section with this name \
             and a vid, or leave it out",
        ),
        (
            in_red("network = \"rad\""),
            "7: port[0] \"vm1\".network = \"rad\": there is no such network; add a [[network]] section with this name \
             and a vid; did you mean \"red\"?",
        ),
        (
            "[[network]]\nname = \"red\"".to_owned(),
            "1: network[0] \"red\".vid: missing; add vid = 10, or another VLAN identifier from 1 to 4094 that no other \
             network has",
        ),
        (
            "[[network]]\nname = \"red\"\nvid = 4095".to_owned(),
            "3: network[0] \"red\".vid = 4095: must be an integer from 1 to 4094",
        ),
        (
            format!("{red}[[network]]\nname = \"blue\"\nvid = 10"),
            "6: network[1] \"blue\".vid = 10: already used by network[0] \"red\"; choose another one",
        ),
        (
            format!("{red}{red}"),
            "5: network[1] \"red\".name = \"red\": already used by network[0] \"red\"; choose another one",
        ),
        (
            "[[network]]\nname = \"red\"\nvlan = 3".to_owned(),
            "3: network[0] \"red\".vlan: unknown key; remove it; the keys here are name, vid, isolate, mtu",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(error(&text), format!("f.toml:{expected}"));
    }
    assert_eq!(parse(&port_with("")).unwrap().ports[0].network, Some(NetworkConfig::default()));
}

#[test]
fn a_mac_address_is_unique_in_its_network_only() {
    let mac = "mac = \"52:54:00:00:00:01\"";
    let other = format!("[[port]]\nname = \"vm2\"\nsocket = \"/tmp/vm2.sock\"\n{mac}\n");
    let red = "[[network]]\nname = \"red\"\nvid = 10\n";
    let apart = format!("{red}{}{other}network = \"red\"\n", port_with(mac));
    assert_eq!(parse(&apart).unwrap().ports[0].mac, parse(&apart).unwrap().ports[1].mac);
    let together = error(&format!("{red}{}{other}", port_with(mac)));
    assert!(together.contains("already used by port[0] \"vm1\""), "{together}");
    let trunk = port_with(&format!("{mac}\nnetwork = \"default\"\ntagged = [\"red\"]"));
    let with_trunk = error(&format!("{red}{trunk}{other}network = \"red\"\n"));
    assert!(with_trunk.contains("already used by port[0] \"vm1\""), "{with_trunk}");
}

#[test]
fn ports_and_uplinks_carry_one_network_untagged_and_others_tagged() {
    let both = "[[network]]\nname = \"red\"\nvid = 10\n[[network]]\nname = \"blue\"\nvid = 20\n";
    let text = |keys: &str| format!("{both}{}{keys}", uplink_with("fw0"));
    let port_text = |keys: &str| format!("{both}{}", port_with(keys));
    let carried = |keys: &str| {
        let uplink = parse(&text(keys)).unwrap().uplinks.remove(0);
        let port = parse(&port_text(keys)).unwrap().ports.remove(0);
        assert_eq!((&port.network, &port.tagged), (&uplink.network, &uplink.tagged));
        let vids =
            |networks: &[NetworkConfig]| networks.iter().map(|it| it.vid).collect::<Vec<_>>();
        (uplink.network.map(|network| network.vid), vids(&uplink.tagged))
    };
    assert_eq!(carried(""), (Some(0), vec![]));
    assert_eq!(carried("tagged = [\"blue\", \"red\"]"), (None, vec![20, 10]));
    assert_eq!(carried("network = \"default\"\ntagged = [\"red\"]"), (Some(0), vec![10]));
    let already = "is there already, in this list or as network; remove one of them";
    let cases = [
        (
            "tagged = [\"default\"]",
            "\"default\": has no VLAN identifier for a tag; add a [[network]] section for it with a vid",
        ),
        (
            "tagged = [\"rad\"]",
            "\"rad\": there is no such network; add a [[network]] section with this name and a vid; did you mean \"red\"?",
        ),
        ("tagged = [\"red\", \"red\"]", &format!("\"red\": {already}")),
        ("tagged = [\"red\"]\nnetwork = \"red\"", &format!("\"red\": {already}")),
    ];
    for (keys, expected) in cases {
        let list = keys.lines().next().unwrap();
        assert_eq!(error(&text(keys)), format!("f.toml:11: uplink[0] \"up0\".{list}: {expected}"));
        let of_port = error(&port_text(keys));
        assert!(of_port.ends_with(&format!("port[0] \"vm1\".{list}: {expected}")), "{of_port}");
    }
}

#[test]
fn a_port_has_the_mtu_of_its_networks_or_less() {
    let networks = "[[network]]\nname = \"red\"\nvid = 10\nmtu = 9000\n[[network]]\nname = \"blue\"\nvid = 20\nmtu = 1400\n";
    let mtu = |keys: &str| {
        let config = parse(&format!("{networks}{}", port_with(keys)));
        config.map(|config| config.ports[0].mtu).map_err(|error| error.to_string())
    };
    assert_eq!(mtu(""), Ok(1500));
    assert_eq!(mtu("mtu = 65535"), Ok(65535));
    assert_eq!(mtu("network = \"red\""), Ok(9000));
    assert_eq!(mtu("network = \"red\"\nmtu = 1500"), Ok(1500));
    assert_eq!(mtu("network = \"blue\""), Ok(1400));
    assert_eq!(mtu("network = \"blue\"\ntagged = [\"red\"]"), Ok(9000));
    assert_eq!(mtu("tagged = [\"blue\"]\nnetwork = \"default\"\nmtu = 2000"), Ok(2000));
    let expected = "port[0] \"vm1\".mtu = 1500: is more than mtu = 1400 of network \"blue\"; lower it, or raise that";
    let error = mtu("network = \"blue\"\nmtu = 1500").unwrap_err();
    assert!(error.ends_with(expected), "{error}");
    for text in [networks.to_owned(), format!("{networks}{}", port_with("network = \"red\""))] {
        let config = parse(&text).unwrap();
        assert_eq!(parse(&toml::to_string(&config).unwrap()).unwrap(), config);
    }
}
