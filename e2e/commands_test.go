package e2e

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// commands are what stories have beyond testscript's own.
var commands = map[string]func(ts *testscript.TestScript, neg bool, args []string){
	"serve":     cmdServe,
	"address":   cmdAddress,
	"storage":   cmdStorage,
	"gateway":   cmdGateway,
	"end":       cmdEnd,
	"signal":    cmdSignal,
	"routes":    cmdRoutes,
	"trusted":   cmdTrusted,
	"terminate": cmdTerminate,
	"repo":      cmdRepo,
	"id":        cmdID,
	"metric":    cmdMetric,
	"readiness": cmdReadiness,
	"sameclone": cmdSameClone,
	"request":   cmdRequest,
	"pkt":       cmdPkt,
	"gzip":      cmdGzip,
	"logged":    cmdLogged,
	"childless": cmdChildless,
	"together":  cmdTogether,
	"until":     cmdUntil,
	"searcher":  cmdSearcher,
	"finds":     cmdFinds,
	"current":   cmdCurrent,
	"killindex": cmdKillIndex,
	"token":     cmdToken,
	"store":     cmdStore,
	"export":    cmdExport,
	"hook":      cmdHook,

	"origin":    cmdOrigin,
	"asked":     cmdAsked,
	"mirror":    cmdMirror,
	"staleness": cmdStaleness,
	"sidecar":   cmdSidecar,
	"deliver":   cmdDeliver,

	"orphanless":  cmdOrphanless,
	"certificate": cmdCertificate,
	"served":      cmdServed,
	"waitfor":     cmdWaitFor,
	"zeros":       cmdZeros,
	"flip":        cmdFlip,
	"sshusers":    cmdSSHUsers,
}

// cmdRepo copies a template to $REPOS: repo PATH [TEMPLATE].
func cmdRepo(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: repo PATH [TEMPLATE]")
	}
	template := "linear"
	if len(args) == 2 {
		template = args[1]
	}
	to := filepath.Join(ts.Getenv("REPOS"), args[0])
	ts.Check(os.MkdirAll(filepath.Dir(to), 0o755))
	ts.Check(os.CopyFS(to, os.DirFS(filepath.Join(ts.Getenv("TEMPLATES"), template))))
}

// cmdID sets a variable to an object ID: id NAME REPOSITORY REVISION.
func cmdID(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: id NAME REPOSITORY REVISION")
	}
	ts.Setenv(args[0], strings.TrimSpace(git(ts, ts.MkAbs(args[1]), "rev-parse", "--verify", args[2])))
}

// cmdMetric compares the sum of a metric's series that have all the labels given: metric 'NAME{a="b"}' OP VALUE.
func cmdMetric(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: metric 'NAME{label=\"value\"}' ==|>=|<=|>|< VALUE")
	}
	want, err := strconv.ParseFloat(args[2], 64)
	ts.Check(err)
	var got float64
	var text string
	// The server counts a response after the client has received its end.
	if gittest.Eventually(func() bool {
		text = scrape(ts)
		got = sumSeries(text, args[0])
		return compare(ts, got, args[1], want)
	}) {
		return
	}
	name, _, _ := strings.Cut(args[0], "{")
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, name) {
			ts.Logf("%s", strings.TrimSuffix(line, "\n"))
		}
	}
	ts.Fatalf("%s is %v, want %s %v", args[0], got, args[1], want)
}

// scrape reads the metrics of all processes.
func scrape(ts *testscript.TestScript) string {
	storyOf(ts).server(ts)
	var all strings.Builder
	for _, p := range storyOf(ts).all() {
		resp, err := http.Get(p.ops + "/metrics")
		ts.Check(err)
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		ts.Check(err)
		all.Write(text)
	}
	return all.String()
}

// sumSeries adds up the series of a text exposition whose name is the selector's and whose labels contain the
// selector's.
func sumSeries(text, selector string) float64 {
	name, rest, _ := strings.Cut(selector, "{")
	var labels []string
	if rest = strings.TrimSuffix(rest, "}"); rest != "" {
		labels = strings.Split(rest, ",")
	}
	sum := 0.0
	for line := range strings.Lines(text) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		seriesName, seriesLabels, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
		if !ok || seriesName != name {
			continue
		}
		have := strings.Split(seriesLabels, ",")
		if slices.ContainsFunc(labels, func(l string) bool { return !slices.Contains(have, l) }) {
			continue
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			sum += v
		}
	}
	return sum
}

func compare(ts *testscript.TestScript, a float64, op string, b float64) bool {
	switch op {
	case "==":
		return a == b
	case ">=":
		return a >= b
	case "<=":
		return a <= b
	case ">":
		return a > b
	case "<":
		return a < b
	}
	ts.Fatalf("unknown comparison %q", op)
	return false
}

// cmdSameClone holds one repository to another: the same refs, the same objects reached from them, the same shallow
// boundary, and a clean fsck. Of partial clones the objects that are there are compared.
func cmdSameClone(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: sameclone A B")
	}
	a, b := ts.MkAbs(args[0]), ts.MkAbs(args[1])
	git(ts, a, "fsck", "--full", "--strict", "--no-dangling")
	for _, what := range []struct {
		name string
		of   func(dir string) string
	}{
		{"refs", func(dir string) string {
			head, _ := exec.Command("git", "-C", dir, "symbolic-ref", "-q", "HEAD").Output()
			return string(head) + git(ts, dir, "for-each-ref", "--format=%(refname) %(objectname) %(symref)")
		}},
		{"shallow boundary", func(dir string) string {
			path := strings.TrimSpace(git(ts, dir, "rev-parse", "--git-path", "shallow"))
			if !filepath.IsAbs(path) {
				path = filepath.Join(dir, path)
			}
			text, _ := os.ReadFile(path)
			return sorted(string(text))
		}},
		{"objects", func(dir string) string {
			// not all that is reached is there
			if exec.Command("git", "-C", dir, "config", "remote.origin.promisor").Run() == nil {
				return sorted(git(ts, dir, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)", "--unordered"))
			}
			return sorted(git(ts, dir, "rev-list", "--objects", "--no-object-names", "--all"))
		}},
	} {
		if x, y := what.of(a), what.of(b); x != y {
			ts.Fatalf("%s and %s have different %s:\n%s\n---\n%s", args[0], args[1], what.name, x, y)
		}
	}
}

// git runs git with the story's environment.
func git(ts *testscript.TestScript, dir string, args ...string) string {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+ts.Getenv("HOME"), "GIT_NO_LAZY_FETCH=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_CONFIG_NOSYSTEM=1", "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		ts.Fatalf("git -C %s %s: %v\n%s%s", dir, strings.Join(args, " "), err, out, &stderr)
	}
	return string(out)
}

func sorted(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// cmdPkt writes pkt-lines to a file: pkt FILE LINE..., where "flush" and "delim" are those packets and everything else
// is a line to which a newline is added.
func cmdPkt(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: pkt FILE LINE...")
	}
	var out bytes.Buffer
	for _, line := range args[1:] {
		switch line {
		case "flush":
			out.WriteString("0000")
		case "delim":
			out.WriteString("0001")
		default:
			fmt.Fprintf(&out, "%04x%s\n", len(line)+5, line)
		}
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), out.Bytes(), 0o644))
}

// cmdGzip packs a file: gzip FROM TO.
func cmdGzip(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: gzip FROM TO")
	}
	text, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	ts.Check(err)
	w.Write(text)
	ts.Check(w.Close())
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), out.Bytes(), 0o644))
}

// cmdLogged looks for a text in the logs of all processes: logged TEXT.
func cmdLogged(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: [!] logged TEXT")
	}
	s := storyOf(ts)
	s.server(ts)
	if neg {
		if strings.Contains(s.logged(), args[0]) {
			ts.Fatalf("the log contains %q, which it should not:\n%s", args[0], s.logged())
		}
		return
	}
	if !gittest.Eventually(func() bool { return strings.Contains(s.logged(), args[0]) }) {
		ts.Fatalf("the log does not contain %q:\n%s", args[0], s.logged())
	}
}

// cmdChildless holds all processes to running no process.
func cmdChildless(ts *testscript.TestScript, neg bool, args []string) {
	s := storyOf(ts)
	s.server(ts)
	var children []int
	if !gittest.Eventually(func() bool {
		children = nil
		for _, p := range s.all() {
			children = append(children, childrenOf(p.cmd.Process.Pid)...)
		}
		return len(children) == 0
	}) {
		ts.Fatalf("the servers have child processes %v, want none", children)
	}
}

// cmdTogether runs one command N times at once; "{}" in its arguments is the number of the run: together [-says REGEXP]
// N COMMAND... With -says all of them have to fail and print what matches.
func cmdTogether(ts *testscript.TestScript, neg bool, args []string) {
	var says *regexp.Regexp
	if len(args) > 2 && args[0] == "-says" {
		var err error
		says, err = regexp.Compile(args[1])
		ts.Check(err)
		args = args[2:]
	}
	if neg || len(args) < 2 {
		ts.Fatalf("usage: together [-says REGEXP] N COMMAND...")
	}
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	type result struct {
		out []byte
		err error
	}
	results := make(chan result)
	for i := range n {
		var run []string
		for _, a := range args[1:] {
			run = append(run, strings.ReplaceAll(a, "{}", strconv.Itoa(i)))
		}
		cmd := exec.Command(run[0], run[1:]...)
		cmd.Dir = ts.MkAbs(".")
		cmd.Env = append(os.Environ(), "HOME="+ts.Getenv("HOME"), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
			"GIT_TERMINAL_PROMPT=0")
		if protocol := ts.Getenv("PROTOCOL"); protocol != "" {
			cmd.Env = append(cmd.Env, "PROTOCOL="+protocol, "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=protocol.version",
				"GIT_CONFIG_VALUE_0="+protocol)
		}
		go func() {
			out, err := cmd.CombinedOutput()
			results <- result{out, err}
		}()
	}
	wrong := 0
	for range n {
		r := <-results
		if good := r.err == nil; good != (says == nil) || says != nil && !says.Match(r.out) {
			wrong++
			ts.Logf("got %v\n%s", r.err, r.out)
		}
	}
	if wrong > 0 && says == nil {
		ts.Fatalf("%d of %d commands failed, want 0", wrong, n)
	}
	if wrong > 0 {
		ts.Fatalf("%d of %d commands did not fail with output that matches %q, want 0", wrong, n, says)
	}
}

// cmdWaitFor waits until files are there, one for each pattern: waitfor PATTERN...
func cmdWaitFor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: waitfor PATTERN...")
	}
	for _, pattern := range args {
		if !gittest.Eventually(func() bool {
			found, err := filepath.Glob(ts.MkAbs(pattern))
			ts.Check(err)
			return len(found) > 0
		}) {
			ts.Fatalf("no file matches %s, want one", pattern)
		}
	}
}

// cmdZeros makes a file of zeros without taking the disk for it: zeros FILE BYTES.
func cmdZeros(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: zeros FILE BYTES")
	}
	n, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), nil, 0o644))
	ts.Check(os.Truncate(ts.MkAbs(args[0]), n))
}

// cmdFlip turns one bit around in the middle of the one file that the pattern names: flip PATTERN.
func cmdFlip(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: flip PATTERN")
	}
	names, err := filepath.Glob(ts.MkAbs(args[0]))
	ts.Check(err)
	if len(names) != 1 {
		ts.Fatalf("%s matches %d files, want 1: %q", args[0], len(names), names)
	}
	text, err := os.ReadFile(names[0])
	ts.Check(err)
	text[len(text)/2] ^= 0x10
	ts.Check(os.WriteFile(names[0], text, 0o600))
}
