package store

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

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// commit is a commit and its tree, as hexadecimal IDs.
type commit struct{ id, tree string }

// child returns a commit with the same tree, and a pack with this commit (gitformat-pack(5)).
func (c commit) child(message string) (commit, []byte) {
	text := fmt.Sprintf("tree %s\nparent %s\nauthor B <b@localhost> 1700000000 +0000\n"+
		"committer B <b@localhost> 1700000000 +0000\n\n%s\n", c.tree, c.id, message)
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
	return commit{fmt.Sprintf("%x", id), c.tree}, append(pack.Bytes(), sum[:]...)
}

// pusher pushes small commits to one branch of a repository, one after the other. It sends what git sends, without a
// process. Not safe for concurrent use.
type pusher struct {
	client       *gitload.Client
	repo, branch string
	tip          commit // of the branch; before the first push, the commit on which the branch begins
	exists       bool   // the branch exists
	n            int    // commits that were made
}

func (s *server) pusher(repo, branch string, base commit) *pusher {
	return &pusher{client: gitload.NewClient(s.URL, s.token), repo: repo, branch: branch, tip: base}
}

// push pushes one commit. advertised is the part of the time until the refs were read.
func (p *pusher) push(ctx context.Context) (took, advertised time.Duration, err error) {
	begun := time.Now()
	body, _, err := p.client.Get(ctx, "/"+p.repo+"/info/refs?service=git-receive-pack")
	if err != nil {
		return 0, 0, err
	}
	_, err = io.Copy(io.Discard, body)
	body.Close()
	if err != nil {
		return 0, 0, err
	}
	advertised = time.Since(begun)
	next, request := p.request()
	if body, _, err = p.client.Post(ctx, p.repo, "git-receive-pack", request); err != nil {
		return 0, 0, err
	}
	defer body.Close()
	if err := readReport(body); err != nil {
		return 0, 0, fmt.Errorf("push to %s of %s: %w", p.branch, p.repo, err)
	}
	p.tip, p.exists = next, true
	return time.Since(begun), advertised, nil
}

// request returns the request of a push of the next commit.
func (p *pusher) request() (commit, []byte) {
	p.n++
	next, pack := p.tip.child(fmt.Sprintf("%s %d", p.branch, p.n))
	old := strings.Repeat("0", len(next.id))
	if p.exists {
		old = p.tip.id
	}
	request := pktline.Append(nil, fmt.Sprintf("%s %s refs/heads/%s\x00report-status object-format=sha1", old, next.id,
		p.branch))
	return next, append(pktline.AppendFlush(request), pack...)
}

// reload reads the branch again after a push whose outcome is not known.
func (p *pusher) reload(ctx context.Context) error {
	id, _, err := p.client.LsRefs(ctx, p.repo, p.branch)
	if err == nil {
		p.tip.id, p.exists = id, true
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
