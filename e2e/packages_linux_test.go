package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// TestReleasePackages installs, uses, upgrades and removes the deb and the rpm of a release, and installs the archive,
// each on its own machine.
func TestReleasePackages(t *testing.T) {
	t.Parallel()
	deb := releasedFile(t, "*_"+runtime.GOARCH+".deb")
	needPrograms(t, "mmdebstrap", "unshare", "nsenter", "findmnt", "ip", "dpkg-deb", "curl")
	root := makeDebian(t)
	t.Run("deb", func(t *testing.T) { t.Parallel(); testDeb(t, root, deb) })
	t.Run("rpm", func(t *testing.T) { t.Parallel(); testRPM(t, root) })
	t.Run("archive", func(t *testing.T) { t.Parallel(); testArchive(t, root) })
}

// TestReleaseLintian: the deb follows the policy of Debian, except for what deploy/packages/deb/lintian-overrides
// explains.
func TestReleaseLintian(t *testing.T) {
	t.Parallel()
	deb := releasedFile(t, "*_"+runtime.GOARCH+".deb")
	needPrograms(t, "lintian")
	if out, err := exec.Command("lintian", "--allow-root", "--fail-on=error,warning", deb).CombinedOutput(); err != nil {
		t.Errorf("lintian: %v\n%s", err, out)
	}
}

// previousDeb returns a package with a lower version and another default configuration, which is otherwise the same.
func previousDeb(t *testing.T, deb string) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("sh", "-euc", `dpkg-deb --raw-extract "$0" tree
sed -i 's/^Version: .*/Version: 0.0.1-1/' tree/DEBIAN/control
sed -i 's/^grace = .*/grace = "45s"/' tree/etc/packhorse/serve.toml
dpkg-deb -Znone --build tree previous.deb`, deb)
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the previous package: %v\n%s", err, out)
	}
	return filepath.Join(dir, "previous.deb")
}

// start starts services as an administrator does, and waits until each accepts requests.
const start = `start() {
	for role; do
		systemctl enable --quiet --now packhorse-$role
		tries=0
		until packhorse health --state /var/lib/packhorse/$role >/run/health 2>&1; do
			tries=$((tries + 1))
			if [ $tries = 300 ]; then cat /run/health; systemctl status packhorse-$role; exit 1; fi
			sleep 0.1
		done
	done
}
`

// commandsOf returns the block of commands of a how-to page that begins with a text.
func commandsOf(t *testing.T, page, begin string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../docs/how-to", page))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range documentPart.FindAllStringSubmatch(string(text), -1) {
		if block := regexp.MustCompile("(?m)^"+part[3]).ReplaceAllString(part[5], ""); strings.HasPrefix(block, begin) {
			return block
		}
	}
	t.Fatalf("%s has no commands that begin with %q", page, begin)
	return ""
}

// keepToken finds the token in the output of a script, and writes it to the file token.
func (m *machine) keepToken(out string) {
	m.t.Helper()
	token := regexp.MustCompile(`(?m)^phk_\w+$`).FindString(out)
	if token == "" {
		m.t.Fatalf("no token in the output:\n%s", out)
	}
	m.run("echo " + token + " >token")
}

// firstUse clones and pushes with the token.
const firstUse = start + `start serve
git config --global user.name alice
git config --global user.email alice@packhorse.invalid
git config --global init.defaultBranch main
git config --global safe.directory '*'
git clone --quiet http://x:$(cat token)@127.0.0.1:8080/app 2>&1
echo "a needle" >app/file
git -C app add file
git -C app commit --quiet --message first
git -C app push --quiet origin HEAD
fails env GIT_TERMINAL_PROMPT=0 git ls-remote http://127.0.0.1:8080/app
`

func testDeb(t *testing.T, root, deb string) {
	m := boot(t, root, deb, previousDeb(t, deb))
	install := "apt-get install --quiet --yes --no-install-recommends -o Dpkg::Options::=--force-confold /packages/"
	first, use, _ := strings.Cut(commandsOf(t, "install.md", "apt-get install"), "\n")
	shadow := "packhorse: /usr/local/bin/packhorse runs instead of the package's; remove it"
	m.run("ln -s /nowhere /srv/git; touch /usr/local/bin/packhorse; cd /packages\n"+ // a volume that is not mounted
		strings.Replace(first, "./packhorse_0.1.0-1_amd64.deb", "--quiet --yes ./previous.deb", 1)+`
test ! -e /nowhere
rm /srv/git /usr/local/bin/packhorse
userdel packhorse
groupadd --system developers # which gets its number
/var/lib/dpkg/info/packhorse.postinst configure 0.0.1-1`, "packhorse: nothing is started", shadow)
	m.run(`test "$(systemctl is-enabled packhorse-serve || :)" = disabled
fails systemctl is-active --quiet packhorse-serve
test "$(stat -c '%a %U:%G' /etc/packhorse /etc/packhorse/keys /etc/packhorse/serve.toml | tr '\n' ' ')" = \
	"750 root:packhorse 750 root:packhorse 640 root:packhorse "
test "$(stat -c '%a %U:%G' /srv/git /var/lib/packhorse | tr '\n' ' ')" = "750 packhorse:packhorse 755 packhorse:packhorse "
packhorse repo create before-the-start --config /etc/packhorse/serve.toml`)
	if out := m.run(`cd /usr/lib/systemd/system; systemd-analyze verify --man=no packhorse-*`); out != "" {
		t.Errorf("systemd-analyze verify says\n%s", out)
	}
	for _, role := range []string{"serve", "storage", "gateway", "search", "mirror"} {
		m.run("systemd-analyze security --offline=yes --threshold=20 /usr/lib/systemd/system/packhorse-" + role + ".service")
	}
	m.keepToken(m.run(use))
	m.run(firstUse)

	t.Log("configuration, sandbox")
	// A port below 1024, hooks, a group that shares a repository, profiles, and the index of a search.
	m.run(start + `mkdir /etc/packhorse/hooks
cat >/etc/packhorse/hooks/pre-receive <<'END'
#!/bin/sh
while read old new ref; do git cat-file commit $new; done >/srv/git/app.git/pushed
if touch /usr/written 2>/dev/null; then exit 1; fi
END
chmod 755 /etc/packhorse/hooks/pre-receive
sed -i 's/127.0.0.1:8080/127.0.0.1:80/' /etc/packhorse/serve.toml
printf '[push]\nhooks_dir = "/etc/packhorse/hooks"\n' >>/etc/packhorse/serve.toml
packhorse config check /etc/packhorse/serve.toml
usermod --append --groups developers packhorse
git config --file /srv/git/app.git/config core.sharedRepository group
chgrp -R developers /srv/git/app.git
find /srv/git/app.git -type d -exec chmod g+rwxs {} +
systemctl restart packhorse-serve
start serve
git -C app remote set-url origin http://x:$(cat token)@127.0.0.1/app
git -C app switch --quiet --create topic
git -C app commit --quiet --allow-empty --message second
git -C app push --quiet origin HEAD
test -s /srv/git/app.git/pushed
systemctl reload packhorse-serve
test -z "$(find /srv/git/app.git/objects ! -group developers -o -type d ! -perm -2070)"
`)
	for _, request := range []string{"127.0.0.1/.api/search/stream?q=needle",
		"127.0.0.1:9090/debug/pprof/profile?seconds=1"} {
		var out []byte
		curl := []string{"--net", "--target=" + m.pid, "curl", "--silent", "--show-error", "--fail", "--user",
			"x:" + strings.TrimSpace(m.run("cat token")), "http://" + request}
		if !gittest.Eventually(func() bool {
			out, _ = exec.Command("nsenter", curl...).CombinedOutput()
			return strings.Contains(string(out), "a needle") || strings.HasPrefix(string(out), "\x1f\x8b")
		}) {
			t.Errorf("%s = %.200q, want the line of app/file or a profile", request, out)
		}
	}
	t.Log("restart")
	m.run(`mkdir /etc/systemd/system/packhorse-serve-http.socket.d
printf '[Socket]\nListenStream=\nListenStream=127.0.0.1:80\n' >/etc/systemd/system/packhorse-serve-http.socket.d/address.conf
systemctl stop packhorse-serve
systemctl enable --quiet --now packhorse-serve-http.socket packhorse-serve-ops.socket
systemctl start packhorse-serve
systemd-run --quiet --unit=requests sh -c 'cd /root/app; while [ ! -e /run/enough ]; do
	git ls-remote --quiet || touch /run/failed
	echo >>/run/asked; done'
`)
	t.Log("upgrade")
	m.run(start + `until [ -s /run/asked ]; do sleep 0.1; done
before=$(systemctl show --property=MainPID packhorse-serve)
` + install + filepath.Base(deb) + `
start serve
test "$(systemctl show --property=MainPID packhorse-serve)" != "$before"
: >/run/asked
until [ -s /run/asked ]; do sleep 0.1; done
touch /run/enough
test ! -e /run/failed
grep -q 127.0.0.1:80 /etc/packhorse/serve.toml
grep -q 60s /etc/packhorse/serve.toml.dpkg-dist
test "$(stat -c '%a %U:%G' /etc/packhorse/serve.toml)" = "640 root:packhorse"
git -C app push --quiet origin HEAD:after
git clone --quiet http://x:$(cat token)@127.0.0.1/app upgraded
git -C upgraded fsck --strict 2>&1
test "$(git -C upgraded rev-parse origin/topic)" = "$(git -C app rev-parse topic)"
`)
	t.Log("roles")
	m.run(roles)

	t.Log("removal")
	m.run(`apt-get remove --quiet --yes packhorse
fails command -v packhorse
fails systemctl is-active --quiet packhorse-serve packhorse-serve-http.socket
grep -q 127.0.0.1:80 /etc/packhorse/serve.toml
test -s /var/lib/packhorse/serve/tokens
git -C /srv/git/app.git fsck --strict 2>&1
id packhorse`)
	m.run(start + install + filepath.Base(deb) + `
fails systemctl is-active --quiet packhorse-serve
test "$(systemctl is-enabled packhorse-serve packhorse-serve-http.socket | tr '\n' ' ')" = "enabled enabled "
systemctl start packhorse-serve-http.socket packhorse-serve-ops.socket
start serve
git -C app ls-remote --quiet`)
	t.Log("purge")
	m.run(`mkdir -p /var/lib/packhorse/gateway/new.git /data
touch /data/file
mv /srv/git/app.git/objects /var/lib/packhorse/gateway/objects
ln -s ../objects /var/lib/packhorse/gateway/new.git/objects
mv /srv/git/app.git/* /var/lib/packhorse/gateway/new.git
rm -r /var/lib/packhorse/mirror
ln -s /data /var/lib/packhorse/mirror
cd /usr/bin
PATH=.:$PATH dpkg --purge packhorse 2>&1
test ! -e /etc/packhorse
test "$(echo /var/lib/packhorse/*)" = "/var/lib/packhorse/gateway /var/lib/packhorse/mirror"
test -e /data/file
test -z "$(find /etc/systemd -name 'packhorse*' -type l)"
git -C /var/lib/packhorse/gateway/new.git fsck --strict 2>&1
git -C /srv/git/before-the-start.git fsck --strict 2>&1
id packhorse`, "kept /var/lib/packhorse/gateway,", "kept /var/lib/packhorse/mirror,", "userdel packhorse")
	m.run("rm -rf /srv/* /var/lib/packhorse; " + install + filepath.Base(deb) + `
apt-get purge --quiet --yes packhorse 2>&1
test ! -e /srv/git
test ! -e /var/lib/packhorse`)
}

// roles runs all other roles, connected by Unix sockets, and clones through each.
var roles = start + `systemctl stop packhorse-serve-http.socket packhorse-serve
cat >/etc/packhorse/storage.toml <<END
root = "/srv/git"
state = "/var/lib/packhorse/storage"
[storage]
listen = "unix:/run/packhorse/node.sock"
[ops]
address = "127.0.0.1:9091"
END
cat >/etc/packhorse/search.toml <<END
state = "/var/lib/packhorse/search"
[search]
listen = "unix:/run/packhorse/search.sock"
[[node]]
name = "a"
address = "unix:/run/packhorse/node.sock"
[[route]]
prefix = ""
nodes = ["a"]
[ops]
address = "127.0.0.1:9092"
END
cat >/etc/packhorse/gateway.toml <<END
state = "/var/lib/packhorse/gateway"
[http]
address = "127.0.0.1:81"
[search]
address = "unix:/run/packhorse/search.sock"
[[node]]
name = "a"
address = "unix:/run/packhorse/node.sock"
[[route]]
prefix = ""
nodes = ["a"]
[ops]
address = "127.0.0.1:9093"
END
cat >/etc/packhorse/mirror.toml <<END
root = "/srv/mirror"
state = "/var/lib/packhorse/mirror"
[http]
address = "127.0.0.1:82"
[[mirror]]
from = "http://127.0.0.1:81/"
[ops]
address = "127.0.0.1:9094"
END
install -d -o packhorse -g packhorse /srv/mirror
start storage search gateway mirror
systemctl restart packhorse-search
start search
git clone --quiet http://127.0.0.1:81/app through-gateway
git clone --quiet http://127.0.0.1:82/127.0.0.1/app through-mirror
systemctl disable --quiet --now packhorse-storage packhorse-search packhorse-gateway packhorse-mirror
`

func testRPM(t *testing.T, root string) {
	rpm := releasedFile(t, "*."+map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]+".rpm")
	needPrograms(t, "rpm")
	m := boot(t, root)
	// rpm of this machine changes the root of the other one, whose shell and systemd run the scripts. Debian's git does
	// not satisfy the dependencies of the package.
	packages := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("nsenter", append([]string{"--target=" + m.pid, "--pid", "--net", "--ipc", "--uts", "rpm",
			"--root=/proc/" + m.pid + "/root", "--dbpath=/var/lib/rpm", "--nodeps"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("rpm %s: %v\n%s", args, err, out)
		}
		return string(out)
	}
	packages("--install", rpm)
	m.run(`test "$(systemctl is-enabled packhorse-serve || :)" = disabled
test "$(stat -c '%a %U:%G' /etc/packhorse /etc/packhorse/keys /etc/packhorse/serve.toml | tr '\n' ' ')" = \
	"750 root:packhorse 750 root:packhorse 640 root:packhorse "
test "$(stat -c '%a %U:%G' /srv/git /var/lib/packhorse | tr '\n' ' ')" = "750 packhorse:packhorse 755 packhorse:packhorse "
packhorse repo create before-the-start --config /etc/packhorse/serve.toml`)
	_, use, _ := strings.Cut(commandsOf(t, "install.md", "apt-get install"), "\n")
	m.keepToken(m.run(use))
	m.run(firstUse)
	before := m.run(`sed -i 's/grace = .*/grace = "50s"/' /etc/packhorse/serve.toml
systemctl show --property=MainPID packhorse-serve
touch /usr/local/bin/packhorse`)
	out := packages("--upgrade", "--replacepkgs", rpm) // with the scripts of an upgrade
	if !strings.Contains(out, "/usr/local/bin/packhorse runs instead") {
		t.Errorf("output of the upgrade = %q, want a warning about /usr/local/bin/packhorse", out)
	}
	after := m.run(start + `rm /usr/local/bin/packhorse
start serve
grep -q 50s /etc/packhorse/serve.toml
git -C app ls-remote --quiet >/dev/null
systemctl show --property=MainPID packhorse-serve`)
	if before == after {
		t.Errorf("after the upgrade the old process runs: %s", after)
	}
	m.run("systemctl stop packhorse-serve; userdel packhorse; groupadd --system developers")
	packages("--upgrade", "--replacepkgs", rpm)
	m.run(`test "$(stat -c %G /etc/packhorse/serve.toml /etc/packhorse/keys | uniq)" = packhorse`)
	if out := packages("--erase", "packhorse"); !strings.Contains(out, "kept the repositories in /srv/git") {
		t.Errorf("output of the removal = %q, want what it keeps", out)
	}
	m.run(`fails systemctl is-active --quiet packhorse-serve
test -z "$(find /etc/systemd -name 'packhorse*' -type l)"
grep -q 50s /etc/packhorse/serve.toml.rpmsave
test -s /var/lib/packhorse/serve/tokens
git -C /srv/git/app.git fsck --strict 2>&1
id packhorse`)
}

// testArchive follows the pages about installation from the archive and deployment on one machine, with TLS.
func testArchive(t *testing.T, root string) {
	archive := releasedFile(t, "*_linux_"+runtime.GOARCH+".tar.gz")
	needPrograms(t, "openssl")
	dir := t.TempDir()
	certificate := exec.Command("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
		"-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", "public.key",
		"-out", "public.pem")
	certificate.Dir = dir
	if out, err := certificate.CombinedOutput(); err != nil {
		t.Fatalf("openssl: %v\n%s", err, out)
	}
	m := boot(t, root, archive, filepath.Join(dir, "public.key"), filepath.Join(dir, "public.pem"))
	commands := func(begin string) string {
		return "export PATH=/usr/local/bin:$PATH; cd /packages\n" + strings.Replace(commandsOf(t, "install.md", begin),
			"packhorse_0.1.0_linux_amd64.tar.gz", filepath.Base(archive), 1)
	}
	m.run("find /usr/local ! -type d | sort >before")
	m.keepToken(m.run(commands("tar ")))
	m.run("export PATH=/usr/local/bin:$PATH\n" + firstUse + `test "$(stat -c '%a %U:%G' /srv/git)" = "750 packhorse:packhorse"
cd /packages
install -m 0640 -g packhorse public.pem public.key /etc/packhorse
install -m 0640 -g packhorse /usr/local/share/doc/packhorse/examples/serve.toml /etc/packhorse`)
	deployment := commandsOf(t, "deployment.md", "systemctl enable packhorse-serve") +
		strings.Replace(commandsOf(t, "deployment.md", "packhorse token create alice"), "alice", "bob", 1)
	m.run("PATH=/usr/local/bin:$PATH\n" + deployment)
	m.run(`git -c http.sslCAInfo=/packages/public.pem clone --quiet https://x:$(cat token)@localhost/app with-tls 2>&1`)
	m.run(commands("systemctl disable") + `find /usr/local ! -type d | sort | cmp - ~/before
fails systemctl is-active --quiet packhorse-serve
git -C /srv/git/app.git fsck --strict 2>&1`)
}
