package spawn

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFreeMemory(t *testing.T) {
	t.Parallel()
	const machine = "MemTotal:  100 kB\nMemAvailable:   8000 kB\n"
	for name, test := range map[string]struct {
		files map[string]string
		want  int64
		known bool
	}{
		"nothing known": {},
		"machine":       {map[string]string{"proc/meminfo": machine}, 8000 << 10, true},
		"a group above has less": {map[string]string{
			"proc/meminfo": machine, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/b/memory.current": "1\n",
			"sys/fs/cgroup/a/memory.max": "5000000\n", "sys/fs/cgroup/a/memory.current": "3000000\n",
			"sys/fs/cgroup/a/memory.stat": "anon 5\ninactive_file 1000\n",
		}, 2001000, true},
		"version 1": {map[string]string{
			"proc/meminfo": machine, "proc/self/cgroup": "7:cpu:/x\n5:memory:/x\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "4000000\n",
			"sys/fs/cgroup/memory/x/memory.usage_in_bytes": "4100000\n",
		}, 0, true},
		"a separate mount": {map[string]string{
			"proc/meminfo": machine, "proc/self/cgroup": "0::/of/the/host\n",
			"sys/fs/cgroup/memory.max": "4000000\n", "sys/fs/cgroup/memory.current": "0\n",
		}, 4000000, true},
	} {
		root := t.TempDir()
		for file, text := range test.files {
			file = filepath.Join(root, file)
			if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if got, known := freeMemoryIn(root); known != test.known || known && got != test.want {
			t.Errorf("%s: %d, %v; want %d", name, got, known, test.want)
		}
	}
}
