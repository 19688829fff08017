package spawn

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// freeMemory returns the free memory for this process and its children in bytes. The machine and each of its control
// groups, version 1 or 2, limit it.
func freeMemory() (int64, bool) { return freeMemoryIn("/") }

// freeMemoryIn is freeMemory with another root directory.
func freeMemoryIn(root string) (int64, bool) {
	least, known := int64(math.MaxInt64), false
	found := func(n int64, ok bool) {
		if ok {
			least, known = min(least, max(n, 0)), true
		}
	}
	info, _ := os.ReadFile(filepath.Join(root, "proc/meminfo"))
	kib, ok := keyed(info, "MemAvailable:")
	found(kib<<10, ok)
	groups, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	for line := range strings.Lines(string(groups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		dir, files := "", cgroupFiles{}
		switch {
		case parts[1] == "":
			dir, files = "sys/fs/cgroup", cgroupFiles{"memory.max", "memory.current", "inactive_file"}
		case parts[1] == "memory":
			dir, files = "sys/fs/cgroup/memory", cgroupFiles{"memory.limit_in_bytes", "memory.usage_in_bytes",
				"total_inactive_file"}
		default:
			continue
		}
		// Limits of all parent groups apply. In a container the path may be the host's, and the mount the container's group.
		for path := parts[2]; ; path = filepath.Dir(path) {
			found(files.free(filepath.Join(root, dir, path)))
			if path == "/" || path == "." {
				break
			}
		}
	}
	return least, known
}

// cgroupFiles are the names of the memory files of a version of control groups.
type cgroupFiles struct{ limit, usage, inactive string }

// free returns the free memory of a group. Memory that the kernel can drop counts as free.
func (f cgroupFiles) free(dir string) (int64, bool) {
	limit, ok := fileNumber(filepath.Join(dir, f.limit))
	if !ok {
		return 0, false // "max", or no limit
	}
	usage, ok := fileNumber(filepath.Join(dir, f.usage))
	if !ok {
		return 0, false
	}
	stat, _ := os.ReadFile(filepath.Join(dir, "memory.stat"))
	inactive, _ := keyed(stat, f.inactive)
	return limit - usage + inactive, true
}

func fileNumber(file string) (int64, bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

// keyed returns the number after a key at the start of a line.
func keyed(text []byte, key string) (int64, bool) {
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) >= 2 && string(fields[0]) == key {
			n, err := strconv.ParseInt(string(fields[1]), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
