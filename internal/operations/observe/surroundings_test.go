package observe

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
)

func TestCgroupFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"memory.stat":    "anon 5\nfile 4096\nfile_dirty 10\nfile_writeback x\n",
		"memory.current": "100\n", "memory.max": "max\n", "cgroup.type": "domain\n",
		"cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0 avg60=0 avg300=0 total=x\nodd\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	own, none := ownCgroup(dir), ownCgroup("")
	for _, test := range []struct {
		what      string
		got, want map[string]int64
	}{
		{"page cache", own.pageCache(), map[string]int64{"all": 4096, "dirty": 10}},
		{"memory", own.memory(), map[string]int64{"used": 100}},
		{"no page cache", none.pageCache(), nil}, {"no memory", none.memory(), nil},
	} {
		if !maps.Equal(test.got, test.want) {
			t.Errorf("%s: %v, want %v", test.what, test.got, test.want)
		}
	}
	var ours []stall
	for _, s := range own.pressures() {
		if s.of == "cgroup" {
			ours = append(ours, s)
		}
	}
	if len(ours) != 1 || ours[0] != (stall{"cpu", "some", "cgroup", 1.5}) {
		t.Errorf("pressure: %v", ours)
	}
}
