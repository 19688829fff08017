package control

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestCaller(t *testing.T) {
	t.Parallel()
	none := func() string { return "" }
	secret := func() string { return "sesame" }
	certificate := &tls.ConnectionState{
		PeerCertificates: []*x509.Certificate{{Raw: []byte("one"), NotAfter: time.Now().Add(time.Hour)}},
		VerifiedChains:   [][]*x509.Certificate{{{Raw: []byte("one")}}},
	}
	unverified := &tls.ConnectionState{PeerCertificates: certificate.PeerCertificates}
	const fingerprint = "certificate 7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
	for name, test := range map[string]struct {
		trust         Trust
		authorization string
		tls           *tls.ConnectionState
		caller        string
		err           refusal
	}{
		"nothing demanded":   {Trust{}, "", nil, "local", ""},
		"no secret now":      {Trust{Secret: none}, "Bearer x", nil, "local", ""},
		"secret":             {Trust{Secret: secret}, "Bearer sesame", nil, "secret", ""},
		"secret, other case": {Trust{Secret: secret}, "bearer  sesame ", nil, "secret", ""},
		"no secret":          {Trust{Secret: secret}, "", nil, "", noSecret},
		"another scheme":     {Trust{Secret: secret}, "Basic sesame", nil, "", noSecret},
		"empty secret":       {Trust{Secret: secret}, "Bearer ", nil, "", wrongSecret},
		"wrong secret":       {Trust{Secret: secret}, "Bearer sesam", nil, "", wrongSecret},
		"certificate":        {Trust{Certificates: true}, "", certificate, fingerprint, ""},
		"no TLS":             {Trust{Certificates: true}, "", nil, "", noCertificate},
		"unverified":         {Trust{Certificates: true}, "", unverified, "", noCertificate},
		"both": {Trust{Secret: secret, Certificates: true}, "Bearer sesame", certificate, fingerprint,
			""},
		"both, wrong secret":       {Trust{Secret: secret, Certificates: true}, "Bearer x", certificate, "", wrongSecret},
		"both, without":            {Trust{Secret: secret, Certificates: true}, "Bearer sesame", nil, "", noCertificate},
		"certificate not demanded": {Trust{Secret: secret}, "", certificate, "", noSecret},
	} {
		r := &http.Request{Host: "localhost", Header: http.Header{"Authorization": {test.authorization}}, TLS: test.tls}
		caller, err := test.trust.identify(r)
		if caller != test.caller || (err == nil) != (test.err == "") || err != nil && err != error(test.err) {
			t.Errorf("%s: caller %q, error %v", name, caller, err)
		}
		if err != nil && strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: the answer tells the secret", name)
		}
	}
}
