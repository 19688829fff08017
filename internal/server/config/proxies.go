package config

import (
	"fmt"
	"net/netip"

	"github.com/packhorse-git/packhorse/internal/transport/clientaddr"
)

// Proxies returns the networks of trusted_proxies.
func (c *Config) Proxies() (list clientaddr.Proxies, err error) {
	for _, text := range c.TrustedProxies {
		network, err := parseNetwork(text)
		if err != nil {
			return nil, fmt.Errorf("trusted_proxies: %w", err)
		}
		list = append(list, network)
	}
	return list, nil
}

// parseNetwork reads a network, or an address as a network of one.
func parseNetwork(text string) (netip.Prefix, error) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Masked(), nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("%q is not a network: write one as in \"10.0.0.0/8\", or an address", text)
	}
	return netip.PrefixFrom(a, a.BitLen()), nil
}

// checkProxies checks trusted_proxies and the keys that need it.
func (c *Config) checkProxies(f *Findings) {
	if _, err := c.Proxies(); err != nil {
		f.bad("%w", err)
	}
	for _, s := range []struct {
		key string
		on  bool
	}{{"http.proxy_protocol", c.HTTP.ProxyProtocol}, {"ssh.proxy_protocol", c.SSH.ProxyProtocol}} {
		if s.on && len(c.TrustedProxies) == 0 {
			f.bad("%s is on, and trusted_proxies is empty, so every connection would be refused: name the networks of the "+
				"proxies in trusted_proxies", s.key)
		}
	}
}
