package e2e

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// ciIssuer is the OpenID issuer of a CI system, and the service from which jobs of GitHub request tokens.
type ciIssuer struct {
	*httptest.Server
	key    jose.JSONWebKey
	claims map[string]any
}

func newCIIssuer(t *testing.T) *ciIssuer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &ciIssuer{key: jose.JSONWebKey{Key: private, KeyID: "1", Use: "sig", Algorithm: string(jose.EdDSA)}}
	i.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any
		switch {
		case r.URL.Path == "/.well-known/openid-configuration":
			answer = map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys",
				"id_token_signing_alg_values_supported": []string{i.key.Algorithm},
				"authorization_endpoint":                i.URL + "/login", "token_endpoint": i.URL + "/code"}
		case r.URL.Path == "/code": // of a visitor of pages: it is the token
			w.Header().Set("Content-Type", "application/json")
			answer = map[string]string{"access_token": "x", "token_type": "Bearer", "id_token": r.FormValue("code")}
		case r.URL.Path == "/token" && r.Header.Get("Authorization") == "Bearer of-the-job":
			answer = map[string]any{"count": 1, "value": i.sign(t, r.FormValue("audience"))}
		case r.URL.Path == "/keys" || r.URL.Path == "/openid/v1/jwks" && r.Header.Get("Authorization") == "Bearer of-the-pod":
			answer = jose.JSONWebKeySet{Keys: []jose.JSONWebKey{i.key.Public()}}
		default:
			w.WriteHeader(http.StatusNotFound)
		}
		json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(i.Close)
	return i
}

// sign makes a token for the job.
func (i *ciIssuer) sign(t *testing.T, audience string) string {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: i.key}, nil)
	if err != nil {
		t.Error(err)
		return ""
	}
	token, err := jwt.Signed(signer).Claims(map[string]any{"sub": "job", "aud": audience,
		"exp": time.Now().Add(time.Minute).Unix()}).Claims(i.claims).Serialize()
	if err != nil {
		t.Error(err)
	}
	return token
}

// ciJob is a job of docs/how-to/ci-tokens.md.
type ciJob struct {
	claims   map[string]any
	outsider map[string]any // claims of a job that gets no access
	script   *regexp.Regexp // its groups are the parts of the script
	indent   string         // of the script
}

var ciJobs = []ciJob{
	{ // GitHub Actions
		map[string]any{"repository": "acme/app", "repository_owner": "acme"},
		map[string]any{"repository": "acme/app", "repository_owner": "evil"},
		regexp.MustCompile(`(?s)run: \|(\n.*)\n      - run: (.*)`), "          ",
	},
	{ // GitLab CI
		map[string]any{"project_path": "acme/app"}, map[string]any{"project_path": "evil/acme/app"},
		regexp.MustCompile(`(?s)script:(\n.*)`), "    - ",
	},
	{ // Kubernetes
		map[string]any{"sub": "system:serviceaccount:ci:runner"}, map[string]any{"sub": "system:serviceaccount:x:runner"},
		regexp.MustCompile(`(?s)- \|(\n.*?)\n +volumeMounts`), "              ",
	},
}

// TestCITokens runs the jobs with the configurations in docs/how-to/ci-tokens.md.
func TestCITokens(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("there is no curl")
	}
	page, err := os.ReadFile("../docs/how-to/ci-tokens.md")
	if err != nil {
		t.Fatal(err)
	}
	tables := regexp.MustCompile("(?s)```toml\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	scripts := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(tables) != len(ciJobs) || len(scripts) != len(ciJobs) {
		t.Fatalf("the page has %d configurations and %d jobs, want %d", len(tables), len(scripts), len(ciJobs))
	}
	for n, job := range ciJobs {
		parts := job.script.FindStringSubmatch(scripts[n][1])
		if parts == nil {
			t.Fatalf("job %d has no script: %s", n+1, scripts[n][1])
		}
		script := strings.ReplaceAll(strings.Join(parts[1:], "\n"), "\n"+job.indent, "\n")
		script = strings.ReplaceAll(script, "\n      '!f", " '!f") // GitLab's is one command in two lines
		job.run(t, tables[n][1], script)
	}
}

// run starts a server with a table of the configuration and runs a script as a job, and as an outsider.
func (j ciJob) run(t *testing.T, table, script string) {
	t.Helper()
	dir, issuer := t.TempDir(), newCIIssuer(t)
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	ca := write("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issuer.Certificate().Raw})))
	name := issuer.URL
	if strings.Contains(table, "jwks_url") {
		name = "https://kubernetes.default.svc.cluster.local"
		table = strings.NewReplacer("https://kubernetes.default.svc/", issuer.URL+"/",
			"/var/run/secrets/kubernetes.io/serviceaccount/ca.crt", ca,
			"/var/run/secrets/kubernetes.io/serviceaccount/token", write("pod", "of-the-pod")).Replace(table)
	} else {
		table = regexp.MustCompile(`issuer = "[^"]*"`).ReplaceAllString(table, "issuer = \""+name+"\"\nca = \""+ca+"\"")
	}
	repo := linear(t)
	for _, host := range []string{"github.com", "gitlab.com"} {
		if err := os.CopyFS(filepath.Join(dir, "root", host, "acme", "app.git"), os.DirFS(repo.Dir)); err != nil {
			t.Fatal(err)
		}
	}
	p, err := startServer(dir, append(gittest.Env(), "GORACE=atexit_sleep_ms=0"), []string{"serve", "--root", "root",
		"--http", "127.0.0.1:0", "--ops", "127.0.0.1:0", "--log-format", "json", "--config",
		write("packhorse.toml", table)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		p.cmd.Process.Signal(syscall.SIGTERM)
		if err := p.wait(); err != nil {
			t.Errorf("the server ended: %v\n%s", err, p.logged())
		}
	}()
	for n, claims := range []map[string]any{j.claims, j.outsider} {
		issuer.claims = map[string]any{"iss": name}
		maps.Copy(issuer.claims, claims)
		token := issuer.sign(t, "packhorse")
		home := t.TempDir()
		work := filepath.Join(home, "work")
		cmd := exec.Command("sh", "-ec", "mkdir "+work+"; cd "+work+"\n"+strings.NewReplacer(
			"https://packhorse.example", p.http, "/var/run/secrets/packhorse/token", write("token", token),
			"/tmp/app", ".").Replace(script)+"\ngit log -1 --format=%H")
		cmd.Env = append(os.Environ(), "HOME="+home, "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "RUNNER_TEMP="+home,
			"ACTIONS_ID_TOKEN_REQUEST_TOKEN=of-the-job", "ACTIONS_ID_TOKEN_REQUEST_URL="+issuer.URL+"/token?v=1",
			"CURL_CA_BUNDLE="+ca, "PACKHORSE_TOKEN="+token, "CI_PROJECT_PATH=acme/app",
			"CI_COMMIT_SHA="+repo.Git("rev-parse", "HEAD"))
		out, err := cmd.CombinedOutput()
		if isMember := n == 0; isMember != (err == nil) {
			t.Errorf("claims %v: error = %v, want access = %v\n%s\n%s\n%s", claims, err, isMember, script, out, p.logged())
		}
	}
	if strings.Contains(p.logged(), "eyJ") {
		t.Errorf("the log contains a token:\n%s", p.logged())
	}
}
