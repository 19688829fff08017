package matrix

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/gitload"
	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/bench/world"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// The transports of the peers over SSH: OpenSSH's sshd with git upload-pack, with the cipher that Packhorse offers and
// with the cipher that OpenSSH's clients prefer.
const (
	openSSH        = "sshd"
	openSSHDefault = "sshd-default"
)

const (
	cipherAES    = "aes128-gcm@openssh.com"
	cipherChaCha = "chacha20-poly1305@openssh.com"
)

// isOpenSSH reports whether the cell measures sshd.
func (c cell) isOpenSSH() bool { return c.transport == openSSH || c.transport == openSSHDefault }

func (c cell) cipher() string {
	if c.transport == openSSHDefault {
		return cipherChaCha
	}
	return cipherAES
}

// planSSH is plan for --ssh. Without sshd it has no peer.
func planSSH(s *subject, sshd bool) []cell {
	cells := []cell{{s, oneServe, true}}
	if sshd {
		cells = append(cells, cell{s, openSSH, false}, cell{s, openSSHDefault, false})
	}
	return append(cells, cell{s, channel, true}, cell{s, inband, true}, cell{s, channel, false}, cell{s, inband, false})
}

// findSSHD finds sshd, which is not in the PATH of users.
func findSSHD() (string, error) {
	if path, err := exec.LookPath("sshd"); err == nil {
		return filepath.Abs(path) // sshd starts itself again and requires an absolute path
	}
	for _, path := range []string{"/usr/sbin/sshd", "/usr/local/sbin/sshd"} {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", errors.New("sshd not found")
}

// makeSSHKeys makes the client's key and a host key for sshd in a directory.
func makeSSHKeys(ctx context.Context, dir string) {
	for _, name := range []string{"client", "host"} {
		cmd := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "bench", "-f",
			filepath.Join(dir, name))
		if out, err := cmd.CombinedOutput(); err != nil {
			world.Check(fmt.Errorf("ssh-keygen (of openssh-client): %w: %s", err, loadgen.Clean(out)))
		}
	}
}

// sshAddress has the address of a cell's SSH server and the path of the repository.
type sshAddress struct {
	host, port, user string
	path             string // of the repository, on the server
	cipher           string
	key              string
}

// sshConfig is the part of a role's configuration that accepts the clients.
func (o *matrixOptions) sshConfig(dir string) string {
	if !o.ssh {
		return ""
	}
	n := 100 * o.Clients
	return fmt.Sprintf("[ssh]\naddress = \"127.0.0.1:0\"\nauthorized_keys = %q\nconnections = %d\n"+
		"address_connections = %d\naddress_rate = 0\n", filepath.Join(dir, "client.pub"), n, n)
}

// setSSH sets the SSH address of the lineup.
func (o *matrixOptions) setSSH(c cell, l *lineup, url string) {
	if !o.ssh {
		return
	}
	host, port, err := net.SplitHostPort(strings.TrimPrefix(url, "ssh://"))
	if err != nil {
		world.Check(fmt.Errorf("the server's SSH address is missing in its state directory: %w", err))
	}
	l.ssh = &sshAddress{host: host, port: port, user: "git", path: c.subject.path, cipher: c.cipher(),
		key: filepath.Join(l.Dir, "client")}
}

// startSSHD starts OpenSSH's server as the current user, on a free port, with its own configuration.
func (o *matrixOptions) startSSHD(ctx context.Context, c cell, l *lineup) {
	me := world.Must(user.Current())
	if me.Uid == "0" { // normally the service manager makes it
		world.Check(os.MkdirAll("/run/sshd", 0o755))
	}
	port := world.Must(world.FreePort())
	config := filepath.Join(l.Dir, "sshd_config")
	text := fmt.Sprintf(`Port %s
ListenAddress 127.0.0.1
HostKey %s
PidFile none
AuthorizedKeysFile %s
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
AcceptEnv GIT_PROTOCOL
MaxStartups %d
LogLevel ERROR
`, port, filepath.Join(l.Dir, "host"), filepath.Join(l.Dir, "client.pub"), 100*o.Clients)
	world.Check(os.WriteFile(config, []byte(text), 0o600))
	p := world.Must(l.Other(ctx, "sshd", world.Must(findSSHD()), net.JoinHostPort("127.0.0.1", port), "-D", "-e", "-f",
		config))
	l.stations = append(l.stations, &station{Process: p, label: "sshd"})
	l.ssh = &sshAddress{host: "127.0.0.1", port: port, user: me.Username,
		path: filepath.Join(c.subject.root, c.subject.path), cipher: c.cipher(), key: filepath.Join(l.Dir, "client")}
}

// sshLoad is a load of clients that clone over SSH, one clone after the other. Each clone is a process of OpenSSH's
// client, as git would start it.
type sshLoad struct {
	to       *sshAddress
	request  []byte // a whole clone in version 2, with the end of the session
	clients  int
	duration time.Duration
	timeout  time.Duration

	size int64 // of the first response
}

// cloneRequest returns the requests of a clone of all refs of a repository, in a form that every server supports, with
// the end of the session.
func cloneRequest(ctx context.Context, dir string) ([]byte, error) {
	format, err := gitload.RunGit(ctx, dir, nil, "rev-parse", "--show-object-format")
	if err != nil {
		return nil, err
	}
	ids, err := gitload.RunGit(ctx, dir, nil, "for-each-ref", "--format=%(objectname)")
	if err != nil {
		return nil, err
	}
	wants := strings.Fields(ids)
	slices.Sort(wants)
	request := gitload.FetchRequest{Tags: true, Wants: slices.Compact(wants)}
	if request.Format, err = git.ParseObjectFormat(strings.TrimSpace(format)); err != nil {
		return nil, err
	}
	return pktline.AppendFlush(request.Body()), nil
}

// prepareSSH returns the load. It lets git verify the pack of the first response.
func prepareSSH(ctx context.Context, to *sshAddress, s *subject) *sshLoad {
	l := &sshLoad{to: to, request: world.Must(cloneRequest(ctx, filepath.Join(s.root, s.path)))}
	dir := world.Must(os.MkdirTemp("", "packhorse-bench-"))
	defer os.RemoveAll(dir)
	repo := filepath.Join(dir, "ssh.git")
	world.Must(gitload.RunGit(ctx, dir, nil, "clone", "-q", "--bare", "--shared", filepath.Join(s.root, s.path), repo))
	var response []byte
	world.Check(l.ask(ctx, func(answer io.Reader) (err error) {
		response, err = io.ReadAll(answer)
		return err
	}))
	l.size = int64(len(response))
	pack := world.Must(packOf(response))
	if err := gitload.VerifyPack(ctx, repo, bytes.NewReader(pack), "", nil, nil); err != nil {
		world.Check(fmt.Errorf("git does not accept the pack of a response of %d bytes: %w", l.size, err))
	}
	world.Check(l.ask(ctx, func(answer io.Reader) error { // again, because a cache keeps repeated packs for longer
		return l.drain(answer, make([]byte, 256<<10), new(atomic.Int64), func() {})
	}))
	return l
}

// packOf returns the pack in a response, which follows the server's capabilities.
func packOf(response []byte) (pack []byte, err error) {
	packets := pktline.NewReader(bytes.NewReader(response))
	for flushes, inPack := 0, false; flushes < 2; {
		kind, p, err := packets.Next()
		switch {
		case err != nil:
			return nil, fmt.Errorf("read the response: %w", err)
		case kind == pktline.Flush:
			flushes++
		case kind == pktline.Data && bytes.HasPrefix(p, []byte("ERR ")):
			return nil, fmt.Errorf("server error: %s", loadgen.Clean(p))
		case kind == pktline.Data && inPack && len(p) > 0 && pktline.Band(p[0]) == pktline.BandData:
			pack = append(pack, p[1:]...)
		case kind == pktline.Data && strings.TrimSuffix(string(p), "\n") == "packfile":
			inPack = true
		}
	}
	return pack, nil
}

// ask runs one client and reads its response to the end.
func (l *sshLoad) ask(ctx context.Context, read func(answer io.Reader) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	path := "'" + strings.ReplaceAll(l.to.path, "'", `'\''`) + "'"
	cmd := exec.CommandContext(ctx, "ssh", "-F", "none", "-T", "-i", l.to.key, "-p", l.to.port, "-l", l.to.user, "-c",
		l.to.cipher,
		"-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o",
		"UserKnownHostsFile=/dev/null",
		"-o", "LogLevel=ERROR", "-o", "SetEnv=GIT_PROTOCOL=version=2", l.to.host, "git-upload-pack "+path)
	var errs bytes.Buffer
	cmd.Stdin, cmd.Stderr, cmd.WaitDelay = bytes.NewReader(l.request), &errs, 5*time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start ssh (of openssh-client): %w", err)
	}
	err = read(out)
	if err != nil {
		cancel()
	}
	if ended := cmd.Wait(); err == nil {
		err = ended
	}
	if err != nil && errs.Len() > 0 {
		err = fmt.Errorf("%w: %s", err, loadgen.Clean(errs.Bytes()))
	}
	return err
}

// tolerated is the relative difference of a response's length from the first, because sshd makes each pack again.
const tolerated = 0.1

// Run works until the end of the duration and of the last response. Each client clones at least once, because a cell
// without a clone has no result.
func (l *sshLoad) Run(ctx context.Context) (*loadgen.Outcome, error) {
	out := &loadgen.Outcome{Failures: &loadgen.Failures{}}
	var mu sync.Mutex
	var received atomic.Int64
	start := time.Now()
	var clients sync.WaitGroup
	for range l.clients {
		clients.Go(func() {
			buf := make([]byte, 256<<10)
			for late := false; !late && ctx.Err() == nil; late = time.Since(start) >= l.duration {
				began := time.Now()
				var first time.Duration
				err := l.ask(ctx, func(answer io.Reader) error {
					return l.drain(answer, buf, &received, func() { first = time.Since(began) })
				})
				mu.Lock()
				if err == nil {
					out.Answers = append(out.Answers, loadgen.Answer{First: first, Took: time.Since(began)})
				}
				mu.Unlock()
				if err != nil && ctx.Err() == nil {
					out.Failures.Add(err)
					loadgen.Sleep(ctx, loadgen.RetryAfter)
				}
			}
		})
	}
	clients.Wait()
	out.Elapsed, out.Bytes = time.Since(start), received.Load()
	return out, ctx.Err()
}

// drain reads a response, and checks its length and its final flush.
func (l *sshLoad) drain(answer io.Reader, buf []byte, received *atomic.Int64, firstByte func()) error {
	var n int64
	var end []byte
	for {
		m, err := answer.Read(buf)
		if n == 0 && m > 0 {
			firstByte()
		}
		n += int64(m)
		received.Add(int64(m))
		if m > 0 {
			end = append(end, buf[max(0, m-4):m]...)
			end = end[max(0, len(end)-4):]
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if off := float64(n-l.size) / float64(l.size); off > tolerated || off < -tolerated || string(end) != "0000" {
		return fmt.Errorf("a response of %d bytes that ends with %q, want %d bytes as in the first and a flush", n, end,
			l.size)
	}
	return nil
}
