package buckettest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/packhorse-git/packhorse/internal/store/bucket"
)

// Binaries is the environment variable with the directory of the servers' binaries. Without it, they are in bin/store
// of the module; make store-servers installs them.
const Binaries = "PACKHORSE_TEST_STORE"

// Server is an S3 server on the loopback interface. Its data stays when it is killed and started again.
type Server struct {
	Address              string // host:port
	AccessKey, SecretKey string
	Dir                  string // of the data; buckets are directories in it

	t        testing.TB
	run      func() *exec.Cmd
	Versions string // directory with old versions; "": they are not kept
	command  *exec.Cmd
	ended    chan struct{} // closed when command has ended
	log      *bytes.Buffer
}

// Versitygw starts a versitygw with one bucket, named "bucket".
func Versitygw(t testing.TB) *Server {
	t.Helper()
	program := findProgram(t, "versitygw", "store-servers")
	s := newServer(t)
	s.run = func() *exec.Cmd {
		// Without --keep-alive: it would answer a request that it refused early once more, for the rest of its body.
		return exec.Command(program, "--port", s.Address, "--access", s.AccessKey, "--secret", s.SecretKey, "--quiet",
			"posix", s.Dir)
	}
	s.Start()
	return s
}

// Versioned starts a versitygw with one bucket, named "bucket", that keeps old versions.
func Versioned(t testing.TB) *Server {
	t.Helper()
	program := findProgram(t, "versitygw", "store-servers")
	s, versions := newServer(t), t.TempDir()
	s.run = func() *exec.Cmd {
		return exec.Command(program, "--port", s.Address, "--access", s.AccessKey, "--secret", s.SecretKey, "--quiet",
			"posix", "--versioning-dir", versions, s.Dir)
	}
	s.Start()
	s.Versions = versions
	client, err := minio.New(s.Address, &minio.Options{Creds: credentials.NewStaticV4(s.AccessKey, s.SecretKey, ""),
		Region: "us-east-1"})
	if err == nil {
		err = client.EnableVersioning(t.Context(), "bucket")
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// MinIO starts a MinIO with one bucket, named "bucket".
func MinIO(t testing.TB) *Server {
	t.Helper()
	program := findProgram(t, "minio", "test-minio")
	s := newServer(t)
	s.run = func() *exec.Cmd {
		c := exec.Command(program, "server", "--quiet", "--address", s.Address, s.Dir)
		c.Env = append(os.Environ(), "MINIO_ROOT_USER="+s.AccessKey, "MINIO_ROOT_PASSWORD="+s.SecretKey,
			"MINIO_BROWSER=off", "MINIO_UPDATE=off")
		return c
	}
	s.Start()
	return s
}

func newServer(t testing.TB) *Server {
	t.Helper()
	s := &Server{
		t: t, Address: freeAddress(t), AccessKey: "packhorse-test", SecretKey: "only for tests", Dir: t.TempDir(),
		log: &bytes.Buffer{},
	}
	if err := os.Mkdir(filepath.Join(s.Dir, "bucket"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	return s
}

// Start starts a killed server and waits until it answers.
func (s *Server) Start() {
	s.t.Helper()
	s.command = s.run()
	s.command.Stdout, s.command.Stderr = s.log, s.log
	endWithUs(s.command)
	s.ended = make(chan struct{})
	started := make(chan error)
	go runOnThread(s.command, started, s.ended)
	if err := <-started; err != nil {
		s.command = nil
		s.t.Fatal(err)
	}
	waitForHTTP(s.t, s.Address, func() string { s.Kill(); return s.log.String() })
}

// runOnThread starts a command and waits until it ends, on a thread that lasts as long: Linux would end the command
// together with the thread that started it (endWithUs).
func runOnThread(c *exec.Cmd, started chan<- error, ended chan<- struct{}) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(ended)
	err := c.Start()
	started <- err
	if err == nil {
		_ = c.Wait()
	}
}

// Kill kills the server without warning.
func (s *Server) Kill() {
	if s.command != nil {
		_ = s.command.Process.Kill()
		<-s.ended
		s.command = nil
	}
}

// Options returns the options of a bucket with this prefix.
func (s *Server) Options(prefix string) bucket.Options {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "credentials")
	text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", s.AccessKey, s.SecretKey)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return bucket.Options{URL: "s3://bucket/" + prefix, Endpoint: "http://" + s.Address, CredentialsFile: file}
}

// Bucket returns a bucket with this prefix.
func (s *Server) Bucket(prefix string) *bucket.S3 {
	s.t.Helper()
	return Open(s.t, s.Options(prefix))
}

// Open returns the bucket of options.
func Open(t testing.TB, options bucket.Options) *bucket.S3 {
	t.Helper()
	b, err := bucket.New(options)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// findProgram returns the path of a server. If it is missing, the test is skipped, and fails in CI. The target of the
// Makefile installs it.
func findProgram(t testing.TB, name, target string) string {
	t.Helper()
	dir := os.Getenv(Binaries)
	if dir == "" {
		root, err := os.Getwd()
		for err == nil && root != filepath.Dir(root) {
			if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
				break
			}
			root = filepath.Dir(root)
		}
		dir = filepath.Join(root, "bin", "store")
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		if ci, _ := strconv.ParseBool(os.Getenv("CI")); ci && name != "minio" {
			t.Fatalf("%s is missing: make %s installs it", path, target)
		}
		t.Skipf("SKIPPED: %s is missing: make %s installs it", path, target)
	}
	return path
}

// freeAddress returns an address with an unused port.
func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// waitForHTTP waits until a server answers requests with any status but 503, with which MinIO starts.
func waitForHTTP(t testing.TB, address string, failed func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(r)
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode != http.StatusServiceUnavailable {
				return
			}
		}
		if ctx.Err() != nil {
			t.Fatalf("server on %s is not ready: %v\n%s", address, err, failed())
		}
		time.Sleep(10 * time.Millisecond)
	}
}
