package githttp_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/balance"
)

// replicas begins a server with nodes a, b, c, ... for all repositories. The first request goes to a.
func replicas(t *testing.T, o options, nodes ...router.Node) *server {
	t.Helper()
	var all []*router.Replica
	for i, n := range nodes {
		all = append(all, &router.Replica{Name: string(rune('a' + i)), Node: n})
	}
	return serveRoutes(t, []router.Route{{Replicas: all}}, o)
}

// answerWith answers each request with a text of known length, as a pack.
func answerWith(text string) *fakeNode {
	return session(func(_ context.Context, reply node.ResponseWriter) error {
		reply.SetLength(int64(len(text)))
		_, err := reply.Write([]byte(text))
		return err
	})
}

// failAt is a node that fails at a point of its session.
func failAt(point string, err error) *fakeNode {
	n := failing(err)
	n.serve = func(_ context.Context, request io.Reader, reply node.ResponseWriter) (node.Outcome, error) {
		outcome := node.Outcome{Command: protocol.CommandFetch}
		for step := range strings.SplitSeq(point, ", ") {
			switch step {
			case "read a byte":
				_, _ = io.ReadFull(request, make([]byte, 1))
			case "read":
				if _, err := readAll(request); err != nil {
					return outcome, err
				}
			case "length":
				reply.SetLength(12345)
			case "bulk":
				if err := reply.StartBulk(true); err != nil {
					return outcome, err
				}
			case "first byte":
				_, _ = reply.Write([]byte("000dpackfile\n"))
				_ = reply.Flush()
			}
		}
		return outcome, err
	}
	return n
}

// Wherever a node fails before the first byte, and whatever the request looks like, the client gets the whole answer of
// another one.
func TestAnotherNodeAnswers(t *testing.T) {
	t.Parallel()
	line := string(pktline.Append(nil, strings.Repeat("x", 9996))) // 10,000 bytes
	random := func(n int) (all string) {
		state := uint32(1)
		for len(all) < n {
			b := make([]byte, 9996)
			for i := range b {
				state = state*1664525 + 1013904223
				b[i] = byte(state >> 24)
			}
			all += string(pktline.Append(nil, string(b)))
		}
		return all + "0000"
	}
	medium, long := strings.Repeat(line, 20)+"0000", strings.Repeat(line, 60)+"0000" // beyond 256 KiB nothing is held
	length := func(body string) string { return fmt.Sprintf("Content-Length: %d", len(body)) }
	const gz, te = "Content-Encoding: gzip", "Transfer-Encoding: chunked"
	longZip := zipped(random(500_000))
	for name, test := range map[string]struct {
		request string
		long    bool // longer than the retained part
	}{
		"short":         {post(length(lsRefs)) + lsRefs, false},
		"chunked":       {post(te) + chunked(lsRefs, 3), false},
		"gzip":          {post(gz, length(zipped(lsRefs))) + zipped(lsRefs), false},
		"medium":        {post(length(medium)) + medium, false},
		"medium, gzip":  {post(gz, te) + chunked(zipped(medium), 100), false},
		"long unpacked": {post(gz, length(zipped(long))) + zipped(long), false},
		"long":          {post(length(long)) + long, true},
		"long, chunked": {post(te) + chunked(long, 7000), true},
		"long, gzip":    {post(gz, length(longZip)) + longZip, true},
	} {
		for _, point := range []string{"at once", "read a byte", "read", "length", "read, length", "read, bulk",
			"read, bulk, length", "bulk", "read, first byte"} {
			t.Run(name+"/"+point, func(t *testing.T) {
				t.Parallel()
				s := replicas(t, options{}, failAt(point, fault.New(fault.Unavailable, "a is gone")),
					answerWith("0008pack0000"))
				c := s.dial()
				go io.WriteString(c, test.request)
				response, body, err := c.answer()
				switch {
				case strings.HasSuffix(point, "first byte"):
					if body != "000dpackfile\n" || err == nil || !c.closed() {
						t.Errorf("status = %s, body = %q, error = %v, want the first bytes and a closed connection", response.Status,
							body, err)
					}
					return
				case test.long && (strings.HasPrefix(point, "read, ") || point == "read" || point == "bulk"):
					if response.StatusCode != 503 || response.Header.Get("Retry-After") != "1" ||
						body != "a is gone\n" {
						t.Errorf("status = %s, body = %q, error = %v, want 503 with Retry-After 1", response.Status, body, err)
					}
					return
				}
				if response.StatusCode != 200 || body != "0008pack0000" || err != nil || response.ContentLength != 12 {
					t.Fatalf("%s %q (length %d), %v", response.Status, body, response.ContentLength, err)
				}
				if !eventually(func() bool { return strings.Contains(s.log.String(), "failed_nodes=[a]") }) ||
					!strings.Contains(s.log.String(), "node=b") {
					t.Errorf("log = %s, want failed_nodes=[a] and node=b", s.log)
				}
				if n := s.value("packhorse_route_failovers_total{error=unavailable,node=a,operation=read}"); n != 1 {
					t.Errorf("counted failovers = %v, want 1", n)
				}
				if n := s.value("packhorse_route_assignments_total{node=b,reason=failover}"); n != 1 {
					t.Errorf("counted assignments for failover = %v, want 1", n)
				}
				if !response.Close { // the connection serves the next request
					c.send(post(length(lsRefs)) + lsRefs)
					if _, body, err := c.answer(); body != "0008pack0000" || err != nil {
						t.Errorf("body = %q, error = %v, want 0008pack0000", body, err)
					}
				}
			})
		}
	}
}

// An advertisement is asked for elsewhere too; the length that the first node announced is forgotten.
func TestAnotherNodeAdvertises(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"0", "2"} {
		s := replicas(t, options{}, failing(fault.New(fault.Unavailable, "a is gone")), &fakeNode{advertise: advertise})
		c := s.dial()
		c.send("GET /repo/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\nGit-Protocol: version=" + version +
			"\r\n\r\n")
		response, body, err := c.answer()
		if response.StatusCode != 200 || !strings.HasSuffix(body, "000eversion "+version+"\n0000") || err != nil ||
			strings.Contains(body, "#") != (version == "0") {
			t.Errorf("version %s: %s %q, %v", version, response.Status, body, err)
		}
	}
}

// TestAnnouncedLengthIsForgotten has a first node that announces a length and fails. The answer of the second one
// differs.
func TestAnnouncedLengthIsForgotten(t *testing.T) {
	t.Parallel()
	s := replicas(t, options{}, failAt("read, bulk, length", fault.New(fault.Unavailable, "a is gone")),
		&fakeNode{serve: echo})
	c := s.dial()
	c.send(post("Content-Length: 24") + lsRefs)
	if response, body, err := c.answer(); !strings.Contains(body, "command=ls-refs") ||
		!strings.HasSuffix(body, "0000") || err != nil {
		t.Errorf("%s %q (length %d), %v", response.Status, body, response.ContentLength, err)
	}
}

// TestConnectionThatBreaksAtTheNode has a node that reports its own broken connection like one of the client.
func TestConnectionThatBreaksAtTheNode(t *testing.T) {
	t.Parallel()
	s := replicas(t, options{}, failAt("read", &node.ClientConnError{Err: fault.New(fault.Unavailable, "a is gone")}),
		answerWith("0000"))
	c := s.dial()
	c.send(post("Content-Length: 24") + lsRefs)
	if response, body, err := c.answer(); body != "0000" || err != nil {
		t.Errorf("status = %s, body = %q, error = %v, want 0000", response.Status, body, err)
	}
}

func TestWhichErrorsAskAnotherNode(t *testing.T) {
	t.Parallel()
	for kind, test := range map[fault.Kind]struct{ again, failed bool }{
		fault.Internal:    {true, true},
		fault.Unavailable: {true, true},
		fault.Exhausted:   {true, false},
		fault.Corrupt:     {true, true},
		fault.Cancelled:   {true, true},
		fault.Invalid:     {false, false},
		fault.NotFound:    {false, false},
		fault.Denied:      {false, false},
		fault.Deadline:    {false, false},
	} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			s := replicas(t, options{}, failAt("read, bulk", fault.New(kind, "a says so")), answerWith("0000"))
			c := s.dial()
			c.send(post("Content-Length: 24") + lsRefs)
			response, body, _ := c.answer()
			if again := response.StatusCode == 200 && body == "0000"; again != test.again ||
				!again && !strings.Contains(body, "a says so") {
				t.Errorf("status = %s, body = %q, want another attempt: %v", response.Status, body, test.again)
			}
			if !eventually(func() bool { return s.router.Status()[0].Served+s.router.Status()[0].Failed == 1 }) ||
				(s.router.Status()[0].Failed == 1) != test.failed {
				t.Errorf("status of the node = %+v, want a failure: %v", s.router.Status()[0], test.failed)
			}
		})
	}
}

// TestAllNodesFail has only failing nodes. The client gets the most hopeful error. Each node is asked once, up to a
// limit.
func TestAllNodesFail(t *testing.T) {
	t.Parallel()
	gone, full, bad := fault.New(fault.Unavailable, "gone"), fault.Retry(fault.Exhausted, 7*time.Second, "full"),
		fault.New(fault.Corrupt, "damaged")
	for name, test := range map[string]struct {
		errors []error
		status int
		says   string
		after  string
	}{
		"one": {[]error{gone}, 503, "gone", "1"},
		"gives up": {[]error{fault.New(fault.Cancelled, "killed")}, 503,
			"the storage node a gave up the request; try again", "1"},
		"damaged, gone":     {[]error{bad, gone}, 503, "gone", "1"},
		"gone, damaged":     {[]error{gone, bad}, 503, "gone", "1"},
		"full, gone":        {[]error{full, gone}, 429, "full", "7"},
		"damaged, damaged":  {[]error{bad, bad}, 200, "ERR damaged", ""},
		"damaged, no":       {[]error{bad, fault.New(fault.Denied, "not you")}, 200, "ERR not you", ""},
		"more than allowed": {[]error{gone, gone, gone, gone, nil}, 503, "gone", "1"},
		"as allowed":        {[]error{gone, gone, gone, nil}, 200, "0000", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var nodes []router.Node
			for _, err := range test.errors {
				if err == nil {
					nodes = append(nodes, answerWith("0000"))
				} else {
					nodes = append(nodes, failAt("read, length", err))
				}
			}
			s := replicas(t, options{}, nodes...)
			c := s.dial()
			c.send(post("Content-Length: 24") + lsRefs)
			response, body, _ := c.answer()
			if response.StatusCode != test.status || !strings.Contains(body, test.says) ||
				response.Header.Get("Retry-After") != test.after {
				t.Errorf("%s %q, Retry-After %q", response.Status, body, response.Header.Get("Retry-After"))
			}
			if !eventually(func() bool { return s.router.Status()[0].InFlight == 0 }) {
				t.Error("requests in flight after the end, want 0")
			}
			for i, n := range s.router.Status() {
				if want := uint64(1); i < 4 && n.Served+n.Failed != want {
					t.Errorf("requests to %s = %d, want %d", n.Name, n.Served+n.Failed, want)
				}
			}
		})
	}
}

// TestNotTheNodesFault has failures of the gateway and of clients. They cause no retry and do not count against the
// node.
func TestNotTheNodesFault(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}), make(chan struct{})
	hold := session(func(_ context.Context, reply node.ResponseWriter) error {
		entered <- struct{}{}
		<-leave
		_, err := reply.Write([]byte("0000"))
		return err
	})
	s := replicas(t, options{bulk: 1, maxBody: 100 << 10}, hold, answerWith("0000"))
	first := s.dial()
	first.send(post("Content-Length: 24") + lsRefs)
	<-entered
	for name, request := range map[string]string{
		"full lane": post("Content-Length: 24") + lsRefs,
		"too long": post("Content-Encoding: gzip", "Transfer-Encoding: chunked") +
			chunked(zipped(strings.Repeat("0005x", 30_000)), 1000),
		"damaged": post("Content-Encoding: gzip", "Content-Length: 30") + zipped(lsRefs)[:30],
	} {
		c := s.dial()
		c.send(request)
		if response, body, _ := c.answer(); body == "0000" {
			t.Errorf("%s: status = %s, body = %q, want a failure", name, response.Status, body)
		}
	}
	close(leave)
	if _, body, err := first.answer(); body != "0000" || err != nil {
		t.Errorf("body = %q, error = %v, want 0000", body, err)
	}
	if !eventually(func() bool { return s.router.Status()[0].Served == 1 }) {
		t.Errorf("status of the node = %+v, want 1 served", s.router.Status()[0])
	}
	if n := s.router.Status(); n[0].Failed+n[1].Failed != 0 || n[1].Served != 3 {
		t.Errorf("status of the nodes = %+v, want no failure and 3 served by the second", n)
	}
	if strings.Contains(s.log.String(), "failed_nodes") {
		t.Errorf("log = %s, want no failed_nodes", s.log)
	}
}

// TestMemoryAcrossNodes has a session that fails. Its memory is released before another one reads the body.
func TestMemoryAcrossNodes(t *testing.T) {
	t.Parallel()
	large := strings.Repeat(string(pktline.Append(nil, strings.Repeat("x", 9996))), 30) + "0000" // 300,000 bytes
	gone := fault.New(fault.Unavailable, "gone")
	s := replicas(t, options{memory: 300 << 10}, failAt("read", gone), failAt("read, bulk", gone), answerWith("0000"))
	c := s.dial()
	c.send(post("Content-Encoding: gzip", fmt.Sprintf("Content-Length: %d", len(zipped(large)))) + zipped(large))
	if response, body, err := c.answer(); body != "0000" || err != nil {
		t.Errorf("status = %s, body = %q, error = %v, want 0000", response.Status, body, err)
	}
}

// A panic at a node in this process gives the node back.
func TestPanicAtANode(t *testing.T) {
	t.Parallel()
	s := replicas(t, options{}, session(func(context.Context, node.ResponseWriter) error { panic("a bug") }))
	c := s.dial()
	c.send(post("Content-Length: 24") + lsRefs)
	if response, _, _ := c.answer(); response.StatusCode != 500 {
		t.Error(response.Status)
	}
	if n := s.router.Status()[0]; n.InFlight != 0 || n.Failed != 1 {
		t.Errorf("status of the node = %+v, want 1 failure and nothing in flight", n)
	}
}

// A connection that was kept for too long is not the node's failure: the same node is asked again, once.
func TestStaleConnections(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ stale, status int }{{1, 200}, {2, 503}} {
		t.Run(fmt.Sprint(test.stale), func(t *testing.T) {
			t.Parallel()
			asked := 0
			s := replicas(t, options{}, session(func(_ context.Context, reply node.ResponseWriter) error {
				if asked++; asked <= test.stale {
					return &node.StaleConnError{Err: fault.New(fault.Unavailable, "it was dead")}
				}
				_, err := reply.Write([]byte("0008pack0000"))
				return err
			}))
			c := s.dial()
			go io.WriteString(c, post(fmt.Sprintf("Content-Length: %d", len(lsRefs)))+lsRefs)
			response, body, err := c.answer()
			if err != nil || response.StatusCode != test.status || asked != 2 {
				t.Errorf("%s %q, %v, asked %d times", response.Status, body, err, asked)
			}
		})
	}
}

// TestOneCallersShare has a caller that exceeds its share of a node. It is refused without a retry on another node, and
// the node stays healthy for others. A node that is full is different.
func TestOneCallersShare(t *testing.T) {
	t.Parallel()
	lane, ann, alone := laneOfThree(t)
	for !alone("bob") || !alone("eve") { // who share a counter with ann, by chance
		ann()
		lane, ann, alone = laneOfThree(t)
	}
	asked := [2]atomic.Int64{}
	at := func(i int, enter func(caller balance.Caller) error) *fakeNode {
		return &fakeNode{advertise: func(session node.Session) ([]byte, error) {
			asked[i].Add(1)
			if err := enter(balance.Caller(session.Caller)); err != nil {
				return nil, err
			}
			return advertise(session)
		}}
	}
	a := at(0, func(caller balance.Caller) error {
		seat, err := lane.Enter(caller)
		if err == nil {
			seat.Leave()
		}
		return err
	})
	b := at(1, func(balance.Caller) error { return nil })
	anybody := callers{func(auth.Identity, git.RepoPath, auth.Operation) error { return nil }}
	s := replicas(t, options{auth: anybody}, a, b)
	c := s.dial()
	ask := func(caller string) (status int) {
		t.Helper()
		c.send("GET /repo/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\nGit-Protocol: " +
			"version=2\r\nAuthorization: Bearer " + caller + "\r\n\r\n")
		response, _, err := c.answer()
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode
	}
	expect := func(what string, status, want, atA, atB int) {
		t.Helper()
		if status != want || int(asked[0].Load()) != atA || int(asked[1].Load()) != atB {
			t.Errorf("%s: %d; asked %d and %d times, want %d and %d", what, status, asked[0].Load(), asked[1].Load(),
				atA, atB)
		}
	}
	expect("who has had his share", ask("ann"), 429, 1, 0)
	expect("another, at the next node", ask("bob"), 200, 1, 1)
	expect("another, at the first one", ask("bob"), 200, 2, 1)
	bob, err := lane.Enter("bob")
	if err != nil {
		t.Fatal(err)
	}
	expect("at the next one", ask("bob"), 200, 2, 2)
	expect("a full node, then the other", ask("eve"), 200, 3, 3)
	bob.Leave()
	ann()
}

// laneOfThree returns a lane of three places. ann has two of them until leave. alone reports whether a caller gets the
// third.
func laneOfThree(t *testing.T) (lane *admit.Lane, leave func(), alone func(caller balance.Caller) bool) {
	lane = admit.NewLane("small", 3)
	one, err1 := lane.Enter("ann")
	two, err2 := lane.Enter("ann")
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	leave = func() {
		one.Leave()
		two.Leave()
	}
	return lane, leave, func(caller balance.Caller) bool {
		seat, err := lane.Enter(caller)
		if err == nil {
			seat.Leave()
		}
		return err == nil
	}
}

// TestFailoverRevealsNoTokens has a token in the path of a request. It is not logged when a node fails or panics.
func TestFailoverRevealsNoTokens(t *testing.T) {
	t.Parallel()
	const token = "phk_abcdefghijklmnopqrstuvwxyz234567abcdefghijklm"
	for name, n := range map[string]*fakeNode{
		"failover": failing(fault.Wrap(fault.Unavailable, "a is gone", fmt.Errorf("open %s: no such file", token))),
		"panic":    {advertise: func(node.Session) ([]byte, error) { panic("a bug") }},
	} {
		s := replicas(t, options{}, n, &fakeNode{advertise: advertise})
		c := s.dial()
		c.send("GET /" + token + "/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: h\r\n\r\n")
		_, _, _ = c.answer()
		if !eventually(func() bool { return strings.Contains(s.log.String(), "repository=phk_***") }) ||
			strings.Contains(s.log.String(), token[:20]) {
			t.Errorf("%s: log = %s, want it without the token", name, s.log)
		}
	}
}
