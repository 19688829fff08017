package spawn

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/bench/benchtest"
)

func TestSpawn(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	page := filepath.Join(t.TempDir(), "page.html")
	out, errs, err := benchtest.Run(t, t.Context(), "spawn", "--heap", "16M,0", "--rate", "50", "--goroutines", "20",
		"--duration", "200ms", "--runs", "2", "--html", page, "--json")
	if err != nil {
		t.Fatal(err, errs)
	}
	var got spawnReport
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err, out)
	}
	methods := []string{methodSpawn}
	if canFork() == nil {
		methods = append(methods, methodFork)
	}
	if len(got.Rows) != 4*len(methods) || len(got.Ratios) != 2*len(methods) || got.Runs != 2 {
		t.Fatalf("%d rows and %d ratios of %d runs:\n%s", len(got.Rows), len(got.Ratios), got.Runs, out)
	}
	seen := map[string]bool{}
	for _, r := range got.Rows {
		if r.Starts != map[int]int{1: 20, 20: 40}[r.Goroutines] || r.Errors != 0 || r.GaveUp != 0 {
			t.Errorf("%+v", r)
		}
		if r.P50 <= 0 || r.P99 < r.P50 || r.Max < r.P99 || r.NeighbourP99 <= 0 {
			t.Errorf("%+v", r)
		}
		seen[strings.Join(r.cells()[:spawnNamed], " ")] = true
	}
	for _, method := range methods {
		for _, row := range []string{"0 alone", "0 20", "16M alone", "16M 20"} {
			if !seen[method+" "+row] {
				t.Errorf("no row %q: %v", method+" "+row, seen)
			}
		}
	}
	for _, key := range []string{"method", "heap_bytes", "goroutines", "p50_us", "p99_us", "max_us", "neighbour_p99_us"} {
		if strings.Count(out, `"`+key+`"`) < len(got.Rows) {
			t.Errorf("no key %s in\n%s", key, out)
		}
	}
	html, err := os.ReadFile(page)
	if err != nil || strings.Count(string(html), "<svg") != 8 || !strings.Contains(string(html), "<td class=\"n\">") {
		t.Errorf("%v\n%s", err, html)
	}

	out, errs, err = benchtest.Run(t, t.Context(), "spawn", "--heap", "0", "--goroutines", "0", "--duration", "50ms",
		"--method", "spawn")
	if err != nil || !strings.Contains(out, "neighbour p99 us") || strings.Contains(out, "against the least one") {
		t.Errorf("%v %s\n%s", err, errs, out)
	}
}

func TestSpawnRefuses(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--heap 1T":                        "want sizes",
		"--heap ,":                         "want sizes",
		"--heap -1G":                       "want sizes",
		"--heap 9999999999G":               "want sizes",
		"--rate 0":                         "--rate 0",
		"--goroutines 1000000":             "--goroutines 1000000",
		"--runs 0":                         "--runs 0",
		"--duration 0s":                    "positive",
		"--method vfork":                   "spawn, fork or both",
		"--heap 0 --git /nonexistent/git1": "the measured process failed",
	} {
		_, _, err := benchtest.Run(t, t.Context(), append([]string{"spawn"}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", args, err, want)
		}
	}
	if _, ok := freeMemory(); !ok {
		t.Skip("free memory is unknown on this machine")
	}
	_, _, err := benchtest.Run(t, t.Context(), "spawn", "--heap", "0,500000G")
	if err == nil || !strings.Contains(err.Error(), "free memory is") {
		t.Errorf("a heap of 500,000 GiB: error %v, want one about free memory", err)
	}
}

// The measured process and its heap end with its parent.
func TestSpawnWorkerEndsWithItsParent(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0], "spawn-worker")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	job := spawnJob{Method: methodSpawn, Rate: 1, Duration: 24 * 3600e9, Patience: 3600e9, Git: "git"}
	if err := json.NewEncoder(in).Encode(job); err != nil {
		t.Fatal(err)
	}
	in.Close()
	if err := cmd.Wait(); err == nil {
		t.Error("got no error a day early, want one")
	}
}
