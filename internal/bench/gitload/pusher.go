package gitload

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1" //nolint:gosec // Git's IDs
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// Commit is a commit and its tree, as hexadecimal IDs.
type Commit struct{ ID, Tree string }

// Tip returns the commit of a branch of a repository on this machine.
func Tip(ctx context.Context, repo, branch string) (c Commit, err error) {
	out, err := RunGit(ctx, repo, nil, "rev-parse", branch, branch+"^{tree}")
	if err == nil {
		_, err = fmt.Sscan(out, &c.ID, &c.Tree)
	}
	return c, err
}

// child returns a commit with the same tree, and a pack with this commit (gitformat-pack(5)).
func (c Commit) child(message string) (Commit, []byte) {
	text := fmt.Sprintf("tree %s\nparent %s\nauthor B <b@localhost> 1700000000 +0000\n"+
		"committer B <b@localhost> 1700000000 +0000\n\n%s\n", c.Tree, c.ID, message)
	id := sha1.Sum(fmt.Appendf(nil, "commit %d\x00%s", len(text), text))
	const version, objects, commitType = 2, 1, 1
	pack := bytes.NewBuffer([]byte{'P', 'A', 'C', 'K', 0, 0, 0, version, 0, 0, 0, objects})
	size := len(text)
	head := byte(commitType<<4 | size&15)
	for size >>= 4; size > 0; size >>= 7 {
		pack.WriteByte(head | 0x80)
		head = byte(size & 0x7f)
	}
	pack.WriteByte(head)
	z := zlib.NewWriter(pack)
	_, _ = io.WriteString(z, text) // a buffer takes everything
	_ = z.Close()
	sum := sha1.Sum(pack.Bytes())
	return Commit{fmt.Sprintf("%x", id), c.Tree}, append(pack.Bytes(), sum[:]...)
}

// Pusher pushes small commits to one branch of a repository, one after the other. It sends what git sends, without a
// process. Not safe for concurrent use.
type Pusher struct {
	Client       *Client
	Repo, Branch string
	Tip          Commit // of the branch; before the first push, the commit on which the branch begins
	exists       bool   // the branch exists
	n            int    // commits that were made
}

// NewPusher returns a pusher with connections of its own. The branch does not exist, and begins on the base.
func NewPusher(url, token, repo, branch string, base Commit) *Pusher {
	return &Pusher{Client: NewClient(url, token), Repo: repo, Branch: branch, Tip: base}
}

// Push pushes one commit. advertised is the part of the time until the refs were read.
func (p *Pusher) Push(ctx context.Context) (took, advertised time.Duration, err error) {
	begun := time.Now()
	body, _, err := p.Client.Get(ctx, "/"+p.Repo+"/info/refs?service=git-receive-pack")
	if err != nil {
		return 0, 0, err
	}
	_, err = io.Copy(io.Discard, body)
	body.Close()
	if err != nil {
		return 0, 0, err
	}
	advertised = time.Since(begun)
	next, request := p.Request()
	if body, _, err = p.Client.Post(ctx, p.Repo, "git-receive-pack", request); err != nil {
		return 0, 0, err
	}
	defer body.Close()
	if err := readReport(body); err != nil {
		return 0, 0, fmt.Errorf("push to %s of %s: %w", p.Branch, p.Repo, err)
	}
	p.Tip, p.exists = next, true
	return time.Since(begun), advertised, nil
}

// Request returns the request of a push of the next commit.
func (p *Pusher) Request() (Commit, []byte) {
	p.n++
	next, pack := p.Tip.child(fmt.Sprintf("%s %d", p.Branch, p.n))
	old := strings.Repeat("0", len(next.ID))
	if p.exists {
		old = p.Tip.ID
	}
	request := pktline.Append(nil, fmt.Sprintf("%s %s refs/heads/%s\x00report-status object-format=sha1", old, next.ID,
		p.Branch))
	return next, append(pktline.AppendFlush(request), pack...)
}

// Reload reads the branch again after a push whose outcome is not known.
func (p *Pusher) Reload(ctx context.Context) error {
	id, _, err := p.Client.LsRefs(ctx, p.Repo, p.Branch)
	if err == nil {
		p.Tip.ID, p.exists = id, true
	}
	return err
}

// readReport reads the report of a push (gitprotocol-pack(5)).
func readReport(body io.Reader) error {
	lines, isChanged := pktline.NewReader(body), false
	for {
		kind, line, err := lines.Line()
		switch {
		case err != nil:
			return fmt.Errorf("reading the report: %w", err)
		case kind == pktline.Flush && isChanged:
			return nil
		case kind == pktline.Flush:
			return errors.New("the report names no ref")
		}
		switch text := string(line); {
		case strings.HasPrefix(text, "ok "):
			isChanged = true
		case text != "unpack ok":
			return errors.New(text)
		}
	}
}
