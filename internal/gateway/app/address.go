package app

import (
	"cmp"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// WorkerOptions describe a worker.
type WorkerOptions struct {
	Name    string
	Address string // "unix:/run/app/w0.sock" or "http://127.0.0.1:3001"
	Slots   int    // requests at the same time; less than 1 means 1
}

// address is the address of a worker.
type address struct {
	network, target string // for net.Dial
	host            string // for requests that have no Host
}

// String returns the canonical form of the address.
func (a address) String() string {
	if a.network == "unix" {
		return "unix:" + a.target
	}
	return "http://" + strings.Replace(strings.TrimSuffix(a.target, ":80"), "%", "%25", 1) // of a zone (RFC 6874)
}

func parseAddress(text string) (address, error) {
	if path, ok := strings.CutPrefix(text, "unix:"); ok && path != "" {
		if !strings.HasPrefix(path, "@") && !strings.Contains(path, "..") { // Clean would change the meaning of these
			path = filepath.Clean(path)
		}
		return address{"unix", path, "localhost"}, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" ||
		strings.Trim(u.Path, "/") != "" {
		return address{}, fault.New(fault.Invalid,
			"worker address %q: must be like unix:/run/app/w0.sock or http://127.0.0.1:3001", text)
	}
	port, err := strconv.ParseUint(cmp.Or(u.Port(), "80"), 10, 16)
	if err != nil || port == 0 {
		return address{}, fault.New(fault.Invalid, "worker address %q: the port must be from 1 to 65535", text)
	}
	host := strings.ToLower(u.Hostname())
	if a, err := netip.ParseAddr(u.Hostname()); err == nil {
		host = a.Unmap().String()
	}
	return address{"tcp", net.JoinHostPort(host, strconv.FormatUint(port, 10)), u.Host}, nil
}

// ParseWorker parses the address of a worker, with an optional name: "unix:/run/app/w0.sock",
// "a=http://127.0.0.1:3001". The default name is that of the socket without ".sock", or host and port.
func ParseWorker(text string) (WorkerOptions, error) {
	w := WorkerOptions{Address: text}
	if name, rest, named := strings.Cut(text, "="); named && !strings.ContainsAny(name, ":/") {
		w.Name, w.Address = name, rest
		if !isWorkerName(name) {
			return w, fault.New(fault.Invalid, "worker %.80q: the name must have letters, digits, \".\", \"_\" and \"-\", at "+
				"most 64", text)
		}
	}
	a, err := parseAddress(w.Address)
	if err != nil {
		return w, err
	}
	w.Address = a.String()
	const maxSocketPath = 103 // unix(7); some systems allow less than Linux
	if a.network == "unix" && len(a.target) > maxSocketPath {
		return w, fault.New(fault.Invalid, "worker address %q: longer than the %d bytes that the path of a socket may have",
			a.target, maxSocketPath)
	}
	if w.Name != "" {
		return w, nil
	}
	w.Name = a.target
	if a.network == "unix" {
		w.Name = strings.TrimSuffix(a.target[strings.LastIndexByte(a.target, '/')+1:], ".sock")
		if !isWorkerName(w.Name) {
			return w, fault.New(fault.Invalid, "worker address %q: %q is not a valid name; add one, as in \"a=%s\"", w.Address,
				w.Name, w.Address)
		}
	}
	return w, nil
}

// isWorkerName reports whether a name can be a metric label.
func isWorkerName(name string) bool {
	for i, c := range []byte(name) {
		isAlphanumeric := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !isAlphanumeric && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return name != "" && len(name) <= 64
}
