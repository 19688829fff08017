package app

import (
	"cmp"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

// check finds requests that are not passed on. It returns status 0 for all others. Package httpguard has refused those
// that are ambiguous, or whose target is not a path.
func (e *exchange) check() (status int, text string) {
	switch {
	case e.r.Method == http.MethodTrace:
		return http.StatusMethodNotAllowed, "this method is not supported"
	case !clients.ValidHost(e.r.Host):
		return http.StatusBadRequest, "invalid Host"
	case e.r.Header["Upgrade"] != nil:
		if text := e.checkUpgrade(); text != "" {
			return http.StatusBadRequest, text
		}
	}
	return 0, ""
}

// rewrite makes the request for a worker. ReverseProxy has removed the fields of the connection (RFC 9110, section
// 7.6.1) before.
func (e *exchange) rewrite(r *httputil.ProxyRequest) {
	out := r.Out
	out.URL.Scheme = "http"
	out.URL.RawQuery = r.In.URL.RawQuery // ReverseProxy has dropped what it cannot parse
	path, _, _ := strings.Cut(r.In.RequestURI, "?")
	isPath := strings.HasPrefix(path, "/") // a worker never gets the absolute form, which could name another host
	if path != out.URL.EscapedPath() && isPath && !strings.HasPrefix(path, "//") && !strings.Contains(path, "#") {
		out.URL.Opaque = path // unchanged: package url would escape more. Opaque takes "//" for a host
	}
	out.Host = r.In.Host
	header := out.Header
	for name := range header {
		if !mayReachWorker(name) || isOfProxies(name) && !(e.from.Trusted && isValidPlace(name, header[name])) {
			delete(header, name)
		}
	}
	if e.upgrade != "" {
		header["Connection"], header["Upgrade"] = []string{"Upgrade"}, []string{e.upgrade}
	} else {
		delete(header, "Connection")
		delete(header, "Upgrade")
	}
	values := make([]string, 0, 8) // of all fields, in one allocation
	set := func(name, value string) {
		values = append(values, value)
		header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	setOrigin(set, &e.from, out.Host)
	set("X-Request-Id", e.id)
	set("X-Request-Start", startTime(e.received))
}

// startTime formats a time as nginx's "t=${msec}": in seconds, with milliseconds.
func startTime(t time.Time) string {
	b := strconv.AppendInt(append(make([]byte, 0, 24), "t="...), t.UnixMilli(), 10)
	n := len(b) - 3
	return string(append(append(b[:n:n], '.'), b[n:]...))
}

// mayReachWorker reports whether a client's field is passed on. Workers believe some fields that only this server or a
// trusted proxy may set. Names with other characters than letters, digits and dashes are dropped: workers that turn
// names into variables (RFC 3875, section 4.1.18) take "X_Forwarded_For" for the name with dashes.
func mayReachWorker(name string) bool {
	switch name {
	case "Content-Length", "Host", "Expect", "Proxy", "Http2-Settings", "Forwarded", "X-Real-Ip", "Client-Ip",
		"X-Client-Ip", "True-Client-Ip", "X-Cluster-Client-Ip", "X-Request-Start", "X-Queue-Start", "X-Request-Id",
		"X-Sendfile", "X-Sendfile-Type", "X-Lighttpd-Send-File", "X-Original-Url", "X-Rewrite-Url", "X-Scheme",
		"X-Url-Scheme", "Front-End-Https", "Gitlab-Workhorse", "X-Forwarded", "Forwarded-For":
		return false
	case "X-Forwarded-Prefix", "X-Forwarded-Port":
		return true
	}
	return isPlainName(name) && !strings.HasPrefix(name, "X-Forwarded-") && !isInternal(name)
}

// isOfProxies reports whether a field is one by which other proxies name the client, or the port and the path prefix
// of its request. It is passed on from trusted proxies.
func isOfProxies(name string) bool {
	switch name {
	case "Cf-Connecting-Ip", "Cf-Connecting-Ipv6", "Cf-Pseudo-Ipv4", "Fastly-Client-Ip", "Fly-Client-Ip",
		"Do-Connecting-Ip", "X-Azure-Clientip", "X-Azure-Socketip", "X-Appengine-User-Ip", "X-Envoy-External-Address",
		"X-Original-Forwarded-For", "X-Originating-Ip", "X-Proxyuser-Ip", "X-Remote-Addr", "X-Remote-Ip",
		"X-Forwarded-Prefix", "X-Forwarded-Port":
		return true
	}
	return false
}

// isValidPlace reports whether a field with a port or a path prefix has one value that is valid. Workers make links
// with them, and "//host" would be a link to another host, as "/.//host" after a browser has resolved it.
func isValidPlace(name string, values []string) bool {
	switch name {
	case "X-Forwarded-Port":
		port, err := strconv.ParseUint(values[0], 10, 16)
		return len(values) == 1 && err == nil && port > 0
	case "X-Forwarded-Prefix":
		u, err := url.Parse(values[0])
		return len(values) == 1 && err == nil && strings.HasPrefix(values[0], "/") && values[0] == u.EscapedPath() &&
			!strings.ContainsAny(u.Path, ";\\") && path.Clean(u.Path) == cmp.Or(strings.TrimSuffix(u.Path, "/"), "/")
	}
	return true
}

// mayReachClient reports whether a worker's field is passed on.
func mayReachClient(name string) bool {
	switch name {
	case "X-Sendfile", "X-Sendfile-Type", "X-Lighttpd-Send-File":
		return false
	}
	return !isInternal(name)
}

// isInternal reports whether a field is one of this server, or of those that it replaces. Such fields pass in neither
// direction.
func isInternal(name string) bool {
	if name == "" || name[0] != 'P' && name[0] != 'X' && name[0] != 'G' {
		return false
	}
	for _, prefix := range []string{"X-Accel-", "X-Packhorse-", "Packhorse-", "Gitlab-Workhorse-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// isPlainName reports whether a name has only letters, digits and dashes.
func isPlainName(name string) bool {
	for _, c := range []byte(name) {
		if (c|0x20 < 'a' || c|0x20 > 'z') && c != '-' && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// setOrigin sets the fields that tell a worker where a request came from.
func setOrigin(set func(name, value string), o *clients.Source, host string) {
	host = cmp.Or(o.Host, host)
	proto := "http"
	if o.HTTPS {
		proto = "https"
	}
	forwarded := appendNode(append(make([]byte, 0, 128), "for="...), o.Client)
	if host != "" {
		set("X-Forwarded-Host", host)
		forwarded = append(append(append(forwarded, `;host="`...), host...), '"')
	}
	set("X-Forwarded-Proto", proto)
	forwarded = append(append(forwarded, ";proto="...), proto...)
	addresses := ""
	if o.Client.IsValid() {
		addresses = o.Client.String()
		set("X-Real-Ip", addresses)
	}
	for _, hop := range o.Hops {
		addresses += ", " + hop.String()
		forwarded = appendNode(append(forwarded, ", for="...), hop)
	}
	if o.Client.IsValid() {
		set("X-Forwarded-For", addresses)
	}
	set("Forwarded", string(forwarded))
}

// appendNode appends an address as in RFC 7239, section 6.
func appendNode(b []byte, a netip.Addr) []byte {
	switch {
	case !a.IsValid():
		return append(b, "unknown"...)
	case a.Is6():
		return append(a.AppendTo(append(b, `"[`...)), `]"`...)
	}
	return a.AppendTo(b)
}
