package e2e

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http/httputil"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// TestPushFaults kills or stops a node or a gateway, or cuts the connection between them, in the middle of a push. The
// client gets an error within a limit, no ref changes, git ends and leaves no files, and the next push succeeds.
func TestPushFaults(t *testing.T) {
	t.Parallel()
	together(t, map[string]func(*testing.T){
		"node-killed": func(t *testing.T) {
			p := newPushPair(t, false)
			p.stick()
			p.kill(p.node)
			p.fails()
			p.startNode(p.node.listen)
			p.recovers()
		},
		"node-stopped": func(t *testing.T) {
			p := newPushPair(t, false)
			p.stick()
			p.signal(p.node, syscall.SIGSTOP)
			p.fails()
			p.signal(p.node, syscall.SIGCONT)
			p.recovers()
		},
		"gateway-killed": func(t *testing.T) {
			p := newPushPair(t, false)
			p.stick()
			p.kill(p.gateway)
			p.fails()
			p.startGateway()
			p.recovers()
		},
		"gateway-stopped": func(t *testing.T) {
			p := newPushPair(t, false)
			p.stick()
			p.signal(p.gateway, syscall.SIGSTOP)
			p.gone(p.children)
			p.signal(p.gateway, syscall.SIGCONT)
			p.fails()
			p.recovers()
		},
		"cut-off": func(t *testing.T) {
			p := newPushPair(t, true)
			p.stick()
			p.proxy.set(weather{hold: true})
			p.proxy.strike(lost)
			p.fails()
			p.gone(p.children)
			p.proxy.set(weather{})
			p.recovers()
		},
		"client-killed": func(t *testing.T) {
			p := newPushPair(t, false)
			p.stick()
			p.body.CloseWithError(io.ErrUnexpectedEOF)
			p.fails()
			p.gone(p.children)
			p.recovers()
		},
	})
}

// pushPair is a pair, and a push that stops in its middle.
type pushPair struct {
	*pair
	token    string
	request  []byte
	before   string // the refs
	body     *io.PipeWriter
	answer   chan string // what the client gets: an answer, or an error
	children []int       // of the node
}

func newPushPair(t *testing.T, proxied bool) *pushPair {
	t.Helper()
	p := &pushPair{pair: newPair(t, proxied)}
	config, err := os.ReadFile(p.gatewayConfig)
	if err != nil {
		t.Fatal(err)
	}
	p.kill(p.gateway)
	p.write("gateway.toml", strings.Replace(string(config), "[http]\n", "[http]\npublic_read = true\n", 1), 0o600)
	p.startGateway()
	p.token = createToken(t, "alice", "--state", filepath.Join(p.dir, "gateway"))
	work := gittest.Init(t)
	noise := make([]byte, 4<<20)
	_, _ = rand.NewChaCha8([32]byte{9}).Read(noise)
	file := p.write("noise", string(noise), 0o600)
	tree := work.GitIn("100644 blob "+work.Git("hash-object", "-w", file)+"\tnoise\n", "mktree")
	tip := work.Git("commit-tree", "-m", "pushed", tree)
	p.request = pktline.AppendFlush(pktline.AppendLine(nil,
		fmt.Sprintf("%040d %s refs/heads/pushed\x00 report-status agent=test", 0, tip)))
	p.request = append(p.request, work.GitIn(tip+"\n", "pack-objects", "--revs", "--stdout", "-q")...)
	p.before = p.refs()
	return p
}

func (p *pushPair) refs() string {
	return gittest.At(p, filepath.Join(p.dir, "repos/one.git")).Git("for-each-ref")
}

// push sends the body of a push to the gateway.
func (p *pushPair) push(body io.Reader) string { return p.gateway.push(p.token, body) }

// push sends the body of a push in chunks. The client of net/http is of no use here: it does not read a response while
// it waits for more of the body.
func (p *serverProcess) push(token string, body io.Reader) string {
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.http, "http://"))
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /one/git-receive-pack HTTP/1.1\r\nHost: localhost\r\nContent-Type: "+
		"application/x-git-receive-pack-request\r\n"+
		"Authorization: Bearer %s\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n", token)
	go func() {
		chunks := httputil.NewChunkedWriter(conn)
		if _, err := io.Copy(chunks, body); err != nil {
			conn.Close()
			return
		}
		_ = chunks.Close()
		_, _ = io.WriteString(conn, "\r\n")
	}()
	answer, err := io.ReadAll(conn)
	return fmt.Sprintf("%s %v", answer, err)
}

// stick begins a push that stops once a part of its pack has arrived.
func (p *pushPair) stick() {
	p.Helper()
	body, pipe := io.Pipe()
	p.body, p.answer = pipe, make(chan string, 1)
	p.Cleanup(func() { pipe.Close() })
	go func() { p.answer <- p.push(body) }()
	go func() { _, _ = pipe.Write(p.request[:2<<20]) }()
	eventually(p.T, "a push is in its middle", func() bool {
		parts, _ := filepath.Glob(filepath.Join(p.dir, "repos/one.git/objects/*incoming*/pack/tmp_pack_*"))
		return len(parts) > 0
	})
	p.children = childrenOf(p.node.cmd.Process.Pid)
}

// fails holds the push to ending with an error, and to changing nothing.
func (p *pushPair) fails() {
	p.Helper()
	select {
	case got := <-p.answer:
		if strings.Contains(got, "unpack ok") || strings.Contains(got, "ok refs/heads/pushed") {
			p.Errorf("half a push is said to be taken: %q", got)
		}
	case <-time.After(hostileLimit):
		p.Fatalf("after %s the push still runs", hostileLimit)
	}
	p.body.Close()
	if after := p.refs(); after != p.before {
		p.Errorf("the refs are %s", after)
	}
}

// recovers holds the pair to taking the push, and to leaving nothing of the one before.
func (p *pushPair) recovers() {
	p.Helper()
	p.gone(p.children)
	p.found()
	if got := p.push(bytes.NewReader(p.request)); !strings.Contains(got, "ok refs/heads/pushed") {
		p.Errorf("then: %q", got)
	}
	gittest.At(p, filepath.Join(p.dir, "repos/one.git")).Git("fsck", "--strict")
}
