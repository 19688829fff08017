package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// historySize is how many commits the repository has that costs work to walk.
func historySize() int { return max(scaled(30_000), 3000) }

// history is a repository without a commit-graph: lines of commits that begin and end in one, with odd dates on the
// way.
func history(t *testing.T, dir string) {
	t.Helper()
	repo := gittest.InitAt(t, dir)
	var in bytes.Buffer
	const lines = 10
	for i := 1; i <= historySize(); i++ {
		date := 1_600_000_000 + i
		switch i % 1000 {
		case 0:
			date = 1
		case 1:
			date = 2_000_000_000
		}
		fmt.Fprintf(&in, "commit refs/heads/line%d\nmark :%d\ncommitter C <c@example.com> %d +0000\ndata 1\nx\n", i%lines, i,
			date)
		if i > lines {
			fmt.Fprintf(&in, "from :%d\n", i-lines)
		}
		if i > 10*lines && i%97 == 0 {
			fmt.Fprintf(&in, "merge :%d\n", i-lines-1)
		}
	}
	in.WriteString("reset refs/heads/main\nfrom :" + fmt.Sprint(historySize()) + "\n")
	repo.GitIn(in.String(), "-c", "fastimport.unpackLimit=0", "fast-import", "--quiet")
}

// v0Head is the head of a request of version 0.
func v0Head(repo, agent string, length int) string {
	return strings.Replace(fetchHead(repo, agent, fmt.Sprintf("Content-Length: %d", length)),
		"Git-Protocol: version=2\r\n", "", 1)
}

// TestHostileWork: requests that are walks over the whole history. Each has an end, ends with its client, and leaves
// room for others (threats: protocol denial of service).
func TestHostileWork(t *testing.T) {
	t.Parallel()
	v := attack(t, "[cache]\ngrace = \"0s\"\n", func(root string) { history(t, filepath.Join(root, "history.git")) })
	repo := gittest.At(t, filepath.Join(v.root, "history.git"))
	commits := strings.Split(repo.Git("rev-list", "--all"), "\n")
	tips := strings.Split(repo.Git("for-each-ref", "--format=%(objectname)"), "\n")
	each := func(key string, ids []string) string {
		return string(many(len(ids), func(i int) string { return key + " " + ids[i] }))
	}
	wants := each("want", tips)
	roots := strings.Split(repo.Git("rev-list", "--all", "--max-parents=0"), "\n")
	v0 := func(rest ...string) string {
		return line("want "+tips[0]+" multi_ack_detailed no-done side-band-64k thin-pack ofs-delta agent=x") +
			strings.Join(rest, "")
	}
	v.metric("packhorse_lane_running") // the connection for metrics is one of those that are open
	idle := v.sockets()
	for _, test := range []struct {
		name, body string
		v0         bool
	}{
		{"haves-of-nothing", fetchStart + wants + string(many(scaled(100_000),
			func(i int) string { return "have " + fakeID(i) })) + "0000", false},
		{"haves-of-all", fetchStart + wants + each("have", commits) + "0000", false},
		{"haves-not-common", fetchStart + wants + each("have", tips[:1]) + each("have", roots) + "0000", false},
		{"since-the-beginning", fetchStart + wants + line("deepen-since 1") + "0009done\n0000", false},
		{"since-the-future", fetchStart + wants + line("deepen-since 1900000000") + "0009done\n0000", false},
		{"not-many", fetchStart + wants + string(many(scaled(10_000),
			func(i int) string { return fmt.Sprint("deepen-not line", i%10) })) + "0009done\n0000", false},
		{"not-HEAD", fetchStart + wants + line("deepen-not main") + "0009done\n0000", false},
		{"deepen-all", fetchStart + wants + line("deepen 100000000") + "0009done\n0000", false},
		{"relative", fetchStart + wants + each("shallow", tips) + line("deepen-relative") + line("deepen 100000") +
			"0009done\n0000", false},
		{"shallow-everywhere", fetchStart + wants + each("shallow", commits) + line("deepen 3") + each("have", commits) +
			"0009done\n0000", false},
		{"include-tag-and-haves", fetchStart + wants + "0010include-tag\n" + each("have", commits[:len(commits)/2]) +
			"0009done\n0000", false},
		{"v0-haves-of-all", v0("0000", each("have", commits), "0000"), true},
		{"v0-rounds", v0("0000", strings.Join(chunked(each("have", slices.Concat(roots, commits)), 50*16), "0000"),
			"0009done\n"), true},
		{"v0-flushes", v0("0000", strings.Repeat("0000", scaled(200_000)), "0009done\n"), true},
		{"v0-shallow-everywhere", v0(each("shallow", commits), line("deepen 3"), "0000", each("have", commits), "0009done\n"),
			true},
		{"v0-since", v0(line("deepen-since 1"), "0000", "0009done\n"), true},
		{"v0-not", v0(string(many(1000, func(i int) string { return fmt.Sprint("deepen-not line", i%10) })), "0000",
			"0009done\n"), true},
	} {
		head := fetchHead("history", test.name, fmt.Sprintf("Content-Length: %d", len(test.body)))
		if test.v0 {
			head = v0Head("history", test.name, len(test.body))
		}
		v.get("/good/info/refs?service=git-upload-pack", test.name) // by then all earlier connections are accepted
		eventually(t, "work ends with its clients", func() bool {
			return v.sockets() <= idle && v.metric("packhorse_lane_running") == 0 && len(childrenOf(v.cmd.Process.Pid)) == 0
		})
		before := v.metric("packhorse_graph_visited_commits_total")
		begun := time.Now()
		a := v.send(strings.NewReader(head), strings.NewReader(test.body))
		if a.err != nil || a.status != http.StatusOK {
			t.Errorf("%s: %d (%v) %.300q", test.name, a.status, a.err, a.body)
		}
		visited := v.metric("packhorse_graph_visited_commits_total") - before
		t.Logf("%s: %.0f commits visited in %s: %.60q", test.name, visited, time.Since(begun), a.body)
		if visited > float64(5*historySize()) {
			t.Errorf("%s: %.0f commits were visited in a history of %d", test.name, visited, historySize())
		}
		parallel(20, func(int) { // the same, and gone at once
			conn := v.connect()
			io.WriteString(conn, head+test.body)
			conn.SetLinger(0)
			conn.Close()
		})
	}
	if n := v.metric(`packhorse_requests_total{operation="fetch",result="cancelled"}`); n == 0 {
		t.Error("got no request with result=cancelled, want some: clients disconnected")
	}
	v.unharmed(500 << 20)
}

// chunked cuts a text into pieces of n bytes.
func chunked(text string, n int) (pieces []string) {
	for len(text) > n {
		pieces, text = append(pieces, text[:n]), text[n:]
	}
	return append(pieces, text)
}

// TestHostileNeighbours: small requests are answered while others make the server walk and pack as much as they can.
func TestHostileNeighbours(t *testing.T) {
	t.Parallel()
	v := attack(t, "[git]\nslots = 1\n[lanes]\ncold = 6\n[cache]\ngrace = \"0s\"\n",
		func(root string) { history(t, filepath.Join(root, "history.git")) })
	tip := v.idOf("history", "main")
	var stop atomic.Bool
	var refused, served atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		parallel(12, func(i int) {
			for n := 0; !stop.Load(); n++ { // always another pack: nothing comes from the cache
				switch a := v.post("history", "greedy", fetching("want "+tip, fmt.Sprint("deepen ", 100+i+12*n),
					"done")); a.status {
				case http.StatusOK:
					served.Add(1)
				case http.StatusTooManyRequests:
					refused.Add(1)
					if a.header.Get("Retry-After") == "" {
						t.Error("a 429 response has no Retry-After")
					}
				default:
					t.Errorf("%d (%v) %.200q", a.status, a.err, a.body)
				}
			}
		})
	}()
	var took []time.Duration
	for range 50 {
		begun := time.Now()
		if a := v.post("good", "small", lsAll); a.status != http.StatusOK || a.err != nil {
			t.Errorf("a small request: %d (%v)", a.status, a.err)
		}
		took = append(took, time.Since(begun))
	}
	eventually(t, "somebody is served", func() bool { return served.Load() > 0 })
	eventually(t, "somebody is refused", func() bool { return refused.Load() > 0 })
	stop.Store(true)
	<-done
	slices.Sort(took)
	t.Logf("small requests: median %s, last %s; of the others %d were served, %d refused", took[len(took)/2],
		took[len(took)-1], served.Load(), refused.Load())
	v.unharmed(500 << 20)
}

// TestHostilePatterns: patterns of a sparse filter that take git without end, and a filter for each of the depths. The
// git process ends with its client, or with its time limit.
func TestHostilePatterns(t *testing.T) {
	t.Parallel()
	prepare := func(root string) {
		repo := gittest.InitAt(t, filepath.Join(root, "patterns.git"))
		name := strings.Repeat("a/", 40) + "c"
		bomb := "/" + strings.Repeat("**/a/", 12) + "**/b\n" // can match in more ways than anybody can try
		big := strings.Repeat("**/"+strings.Repeat("*a", 20)+"**/x\n", 20_000)
		repo.GitIn(fmt.Sprintf("commit refs/heads/main\ncommitter C <c@example.com> 1 +0000\ndata 1\nx\nM 100644 inline "+
			"%s\ndata 1\nx\n"+
			"M 100644 inline bomb\ndata %d\n%s\nM 100644 inline big\ndata %d\n%s\n",
			name, len(bomb), bomb, len(big), big), "fast-import", "--quiet")
	}
	bomb := func(v *victim, file string) []byte {
		return fetching("want "+v.idOf("patterns", "main"), "filter sparse:oid=main:"+file, "done")
	}
	t.Run("hang-up", func(t *testing.T) {
		t.Parallel()
		v := attack(t, "[cache]\ngrace = \"0s\"\n", prepare)
		for _, file := range []string{"bomb", "big"} {
			conn := v.connect()
			body := bomb(v, file)
			io.WriteString(conn, fetchHead("patterns", file, fmt.Sprintf("Content-Length: %d", len(body)))+string(body))
			eventually(t, "git runs", func() bool {
				return len(childrenOf(v.cmd.Process.Pid)) > 0 || strings.Contains(v.logged(), `"agent":"`+file+`"`)
			})
			conn.Close()
		}
		v.unharmed(200 << 20)
		if r := v.record("bomb"); r.Result != "cancelled" {
			t.Errorf("the log says %+v", r)
		}
	})
	t.Run("time limit", func(t *testing.T) {
		t.Parallel()
		v := attack(t, "[git]\ntime_limit = \"3s\"\n", prepare)
		body := bomb(v, "bomb")
		conn := v.connect()
		io.WriteString(conn, fetchHead("patterns", "bomb", fmt.Sprintf("Content-Length: %d", len(body)))+string(body))
		a := readAnswer(bufio.NewReader(conn))
		if !strings.Contains(a.body, "the pack could not be made") || strings.Contains(a.body, "PACK") {
			t.Errorf("a pack that takes too long: %d (%v) %.300q", a.status, a.err, a.body)
		}
		if r := v.record("bomb"); r.Result != "deadline" || !strings.Contains(r.Error, "the pack could not be made") {
			t.Errorf("the log says %+v", r)
		}
		v.unharmed(200 << 20)
	})
	t.Run("depths", func(t *testing.T) {
		t.Parallel()
		v := attack(t, "", prepare)
		for depth := range 30 {
			v.wantsPack("depths", v.post("patterns", "depths",
				fetching("want "+v.idOf("patterns", "main"), fmt.Sprint("filter tree:", depth), "done")))
		}
		v.wantsPack("depths", v.post("patterns", "depths",
			fetching("want "+v.idOf("patterns", "main"), "filter tree:18446744073709551615", "done")))
		v.unharmed(200 << 20)
	})
}
