package proctree

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
)

func TestOwnCgroup(t *testing.T) {
	t.Parallel()
	const text = "9:name=systemd:/s\n4:cpu,memory:/ab:c/d\n0::/user.slice/x\n"
	for _, test := range []struct {
		text string
		v1   bool
		want string
	}{
		{text, true, "/ab:c/d"}, {text, false, "/user.slice/x"}, {"", true, "/"}, {"garbage\n::\n", false, "/"},
	} {
		if got := ownCgroup(test.text, test.v1); got != test.want {
			t.Errorf("%q, %v: %q, want %q", test.text, test.v1, got, test.want)
		}
	}
}

func TestCgroupFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"memory.stat":    "anon 5\nfile 4096\nfile_dirty 10\nfile_writeback x\ntotal_cache 7\ntotal_dirty 8\n",
		"memory.current": "100\n", "memory.max": "max\n", "memory.usage_in_bytes": "200\n", "memory.limit_in_bytes": "9223372036854771712\n",
		"cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0 avg60=0 avg300=0 total=x\nodd\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	two, one, none := cgroups{memory: dir, pressure: dir, v2: true}, cgroups{memory: dir}, cgroups{}
	for _, test := range []struct {
		what      string
		got, want map[string]int64
	}{
		{"v2 cache", two.pageCache(), map[string]int64{"all": 4096, "dirty": 10}}, {"v2 held", two.held(), map[string]int64{"used": 100}},
		{"v1 cache", one.pageCache(), map[string]int64{"all": 7, "dirty": 8}}, {"v1 held", one.held(), map[string]int64{"used": 200}},
		{"no cache", none.pageCache(), nil}, {"none held", none.held(), nil},
	} {
		if !maps.Equal(test.got, test.want) {
			t.Errorf("%s: %v, want %v", test.what, test.got, test.want)
		}
	}
	var ours []stall
	for _, s := range two.pressures() {
		if s.of == "cgroup" {
			ours = append(ours, s)
		}
	}
	if len(ours) != 1 || ours[0] != (stall{"cpu", "some", "cgroup", 1.5}) {
		t.Errorf("pressure: %v", ours)
	}
}

func TestNetwork(t *testing.T) {
	t.Parallel()
	got := network("Inter-| Receive\n face |bytes\n    lo: 1 2 0 0 0 0 0 0 3 0 0 0 0 0 0 0\n  eth0:10 0 0 0 0 0 0 0 20 0 0 0 0 0 0 0\n" +
		"eth1: 100 0 0 0 0 0 0 0 200 0 0 0 0 0 0 0\nbad: 1\n")
	want := traffic{{"loopback", "in"}: 1, {"loopback", "out"}: 3, {"network", "in"}: 110, {"network", "out"}: 220}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
