package gitload

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// Answer describes the response to one fetch.
type Answer struct {
	Pack    int64 // bytes of the pack
	Objects int   // in the pack's header
	First   time.Duration
	Took    time.Duration // to the last byte, from the same start as First: the request
}

// FetchOnce sends one request on its own connection and reads the response. First is the time to the first byte of the
// pack, without the connection.
func FetchOnce(ctx context.Context, t *loadgen.Target, request []byte, timeout time.Duration) (*Answer, error) {
	c, err := t.DialConn(ctx, new(atomic.Int64), timeout)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	a := &answerReader{start: time.Now()}
	b, err := c.Exchange(t.Post("git-upload-pack", "", request))
	if err == nil {
		err = CheckFetch(b, nil, &a.walker)
	}
	if err != nil {
		return nil, err
	}
	return a.end()
}

// UploadPack answers a fetch request of protocol version 2 with git upload-pack over pipes. CPU is the user and system
// time of the whole process tree.
func UploadPack(ctx context.Context, repo string, request []byte) (a *Answer, cpu time.Duration, err error) {
	cmd := exec.CommandContext(ctx, "git", "upload-pack", "--stateless-rpc", repo)
	cmd.Env = append(gitEnv(), "GIT_PROTOCOL=version=2")
	cmd.Stdin = bytes.NewReader(request)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, 0, err
	}
	answer := &answerReader{start: time.Now()}
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	bad := answer.read(out)
	if err := errors.Join(bad, cmd.Wait()); err != nil {
		return nil, 0, fmt.Errorf("git upload-pack: %w: %s", err, loadgen.Clean(errs.Bytes()))
	}
	a, err = answer.end()
	return a, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), err
}

// answerReader measures a response while it is parsed.
type answerReader struct {
	walker Walker
	start  time.Time
}

// read parses a response without HTTP.
func (a *answerReader) read(r io.Reader) error {
	buf := make([]byte, loadgen.ConnBuffer)
	for {
		n, err := r.Read(buf)
		if bad := a.walker.feed(buf[:n]); bad != nil {
			return bad
		}
		if err == io.EOF {
			return a.walker.finish()
		}
		if err != nil {
			return err
		}
	}
}

// end stops the clock.
func (a *answerReader) end() (*Answer, error) {
	took := time.Since(a.start)
	if !a.walker.HasPack {
		return nil, errors.New("the response has no pack")
	}
	return &Answer{Pack: a.walker.pack, Objects: int(binary.BigEndian.Uint32(a.walker.magic[8:])),
		First: a.walker.Began.Sub(a.start), Took: took}, nil
}
