package config

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

const twoNodes = `
[storage]
listen = "unix:/run/node.sock"
socket_mode = "0660"

[[node]]
name = "a"
address = "127.0.0.1:9100"

[[node]]
name = "b"
address = "unix:/run/b.sock"
weight = 2
transport = "inband"

[[route]]
prefix = "team"
nodes = ["a", "b"]

[[route]]
nodes = ["b"]
`

func TestLoadArrays(t *testing.T) {
	t.Parallel()
	cfg, from, err := loadTextAs(t, RoleGateway, twoNodes, "--node", "b=unix:/run/other.sock,3", "--node", "c=[::1]:9")
	if err != nil {
		t.Fatal(err)
	}
	want := []NodeConfig{
		{Name: "a", Address: "127.0.0.1:9100", Weight: 1, Transport: "channel"},
		{Name: "b", Address: "unix:/run/other.sock", Weight: 3, Transport: "inband"},
		{Name: "c", Address: "[::1]:9", Weight: 1, Transport: "channel"},
	}
	if !reflect.DeepEqual(cfg.Node, want) {
		t.Errorf("nodes %+v\nwant  %+v", cfg.Node, want)
	}
	if routes := []RouteConfig{{"team", []string{"a", "b"}}, {"", []string{"b"}}}; !reflect.DeepEqual(cfg.Route, routes) {
		t.Errorf("routes %+v\nwant   %+v", cfg.Route, routes)
	}
	for key, want := range map[string]string{
		"node[0].name": "FILE:7", "node[0].weight": "default", "node[1].weight": "--node", "node[1].transport": "FILE:14",
		"node[2].name": "--node", "node[2].transport": "default", "route[0].nodes": "FILE:18", "route[1].prefix": "default",
		"storage.socket_mode": "FILE:4", "state": "default",
	} {
		if from[key] != want {
			t.Errorf("%s comes from %q, want %q", key, from[key], want)
		}
	}
	if cfg.State != "/home/git/.local/state/packhorse/gateway" {
		t.Errorf("state directory %q", cfg.State)
	}
	if err := cfg.Check(); err != nil {
		t.Error(err)
	}

	inline, _, err := loadTextAs(t, RoleGateway, `node = [{name = "a", address = "127.0.0.1:9100"}]`)
	if err != nil || !reflect.DeepEqual(inline.Node, want[:1]) {
		t.Errorf("inline tables: %+v, %v", inline.Node, err)
	}
}

// TestShowArrays checks that the output of config show has the arrays of tables.
func TestShowArrays(t *testing.T) {
	t.Parallel()
	cfg, from, err := loadTextAs(t, RoleGateway, twoNodes)
	if err != nil {
		t.Fatal(err)
	}
	var shown bytes.Buffer
	if err := ShowConfig(&shown, &cfg, from); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"[[node]]\nname = \"a\"", "[[route]]\nprefix = \"team\"", `nodes = ["a", "b"]`,
		"# FILE:18"} {
		if !strings.Contains(shown.String(), want) {
			t.Errorf("no %q in\n%s", want, &shown)
		}
	}
	again, _, err := loadTextAs(t, RoleGateway, shown.String())
	if err != nil || !reflect.DeepEqual(again, cfg) {
		t.Errorf("config show gives other values: %v\n%+v\n%+v", err, again, cfg)
	}
}

func TestArrayMistakes(t *testing.T) {
	t.Parallel()
	const node = "[[node]]\nname = \"a\"\naddress = \"127.0.0.1:1\"\n"
	for _, test := range []struct{ text, want string }{
		{node + "wieght = 2", `FILE:4: unknown key "node.wieght"; did you mean "node.weight"?`},
		{node + "[[nodes]]\nname = \"b\"", `FILE:4: unknown key "nodes"; did you mean "node"?`},
		{node + "weight = \"2\"", "FILE:4: node.weight: "},
		{node + node + "name = 3", "FILE:7"},
		{"[node]\nname = \"a\"", "FILE:1: there may be several tables node; write [[node]]"},
		{"[[route]]\nnodes = \"a\"", "FILE:2"},
		{"[http]\nstall = 3", `FILE:2: http.stall: "3" is not a duration`},
		{"[storage]\nsocket_mode = \"0999\"", `"0999" is not a file mode`},

		{node + "weight = 0", `node "a": weight is 0; it has to be from 1 to 1000`},
		{node + "transport = \"pigeon\"", `transport is "pigeon"; it has to be one of ["channel" "inband"]`},
		{node + "tls_cert = \"x\"", `node "a": tls_cert needs tls_key`},
		{node + "server_name = \"x\"", `node "a": server_name needs tls_ca`},
		{"[[node]]\nname = \"a\"\naddress = \"unix:/run/a\"\ntls_ca = \"x\"", "set server_name"},
		{node + node, `there are two nodes "a"`},
		{"[[node]]\nname = \"a b\"", `node "a b" needs a name of letters`},
		{"[[node]]\nname = \"a\"", `node "a": address: "" is neither HOST:PORT`},
		{"[[node]]\nname = \"a\"\naddress = \"unix:\"", "does not name a socket"},
		{"[[node]]\nname = \"a\"\naddress = \"unix:/" + strings.Repeat("x", 103) + "\"", "too long for a socket"},
		{"[[node]]\nname = \"a\"\naddress = \"10.0.0.7:1\"",
			`node "a" is on another machine (10.0.0.7:1) without authentication: set its tls_ca`},
		{"[[node]]\nname = \"a\"\naddress = \"node.example.com:1\"", "without authentication"},
		{"[[node]]\nname = \"a\"\naddress = \"10.0.0.7:1\"\nsecret_file = \"x\"\n[[mirror]]\nfrom = \"https://host/\"",
			`node "a" is reached without TLS`},
		{node + "[[route]]\nnodes = [\"b\"]", `names the node "b", which does not exist`},
		{node + "[[route]]\nnodes = [\"a\", \"a\"]", `names the node "a" twice`},
		{node + "[[route]]\nprefix = \"x\"", `route "x" has no nodes`},
		{node + "[[route]]\nprefix = \"/x/\"\nnodes = [\"a\"]\n[[route]]\nprefix = \"x.git\"\nnodes = [\"a\"]",
			`there are two routes for "x"`},
		{node + "[[route]]\nprefix = \"../x\"\nnodes = [\"a\"]", `route "../x": `},

		{"[storage]\nlisten = \"0.0.0.0:9100\"",
			"set storage.client_ca (mutual TLS) or storage.secret_file, or listen on 127.0.0.1"},
		{"[storage]\nlisten = \":9100\"", "is reachable from other machines"},
		{"[storage]\nlisten = \"9100\"", "neither HOST:PORT"},
		{"[storage]\nclient_ca = \"x\"", "storage.client_ca needs storage.tls_cert"},
	} {
		cfg, _, err := loadTextAs(t, RoleGateway, test.text)
		if err == nil {
			err = cfg.Check()
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q gives\n %v\nwant\n %s", test.text, err, test.want)
		}
	}
	for _, good := range []string{
		"[[node]]\nname = \"a\"\naddress = \"10.0.0.7:1\"\nsecret_file = \"x\"",
		"[[node]]\nname = \"a\"\naddress = \"10.0.0.7:1\"\ntls_ca = \"x\"",
		"[storage]\nlisten = \":9100\"\nsecret_file = \"x\"",
		"[storage]\nlisten = \":9100\"\ntls_cert = \"x\"\ntls_key = \"x\"\nclient_ca = \"x\"",
	} {
		cfg, _, err := loadTextAs(t, RoleGateway, good)
		if err == nil {
			err = cfg.Check()
		}
		if err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
}

func TestNodeFlags(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a=127.0.0.1:1":           "",
		"a=unix:/tmp/x=y,4":       "",
		"a=unix:/tmp/x,y":         "is not a weight",
		"a=127.0.0.1:1,0":         "is not a weight",
		"127.0.0.1:1":             "write NAME=ADDRESS",
		"=127.0.0.1:1":            "write NAME=ADDRESS",
		"a=":                      "write NAME=ADDRESS",
		"a=127.0.0.1:1,999999999": "",
	} {
		var f nodeFlags
		err := f.Set(text)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	var f nodeFlags
	if f.Set("a=x:1") != nil || f.Set("a=x:2") == nil {
		t.Error("two nodes of one name")
	}
}

func TestRoleNeeds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		role       Role
		args, want string
	}{
		{RoleServe, "", "which repositories?"},
		{RoleStorage, "--listen unix:/x", "which repositories?"},
		{RoleStorage, "--root /x", "give --listen"},
		{RoleStorage, "--root /x --listen unix:/x", ""},
		{RoleGateway, "", "which nodes?"},
		{RoleGateway, "--node a=unix:/x", ""},
		{RoleGateway, "--node a=unix:/x --state /" + strings.Repeat("x", 100), "too long for a socket"},
	} {
		cfg, _, err := loadTextAs(t, test.role, "", strings.Fields(test.args)...)
		if err == nil {
			err = cfg.checkRole(test.role)
		}
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s %s: %v, want %q", test.role, test.args, err, test.want)
		}
	}
}
