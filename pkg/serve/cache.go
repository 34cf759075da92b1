// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"sync"
	"time"
)

// cache keeps pages of at most cacheBytes together. The zero value is empty.
type cache struct {
	lock  sync.Mutex
	pages map[string]page
	size  int
}

type page struct {
	body    []byte
	expires time.Time
}

func (c *cache) get(key string, now time.Time) ([]byte, bool) {
	c.lock.Lock()
	defer c.lock.Unlock()
	p, ok := c.pages[key]
	return p.body, ok && now.Before(p.expires)
}

// put keeps a page, and drops those that expire first until all fit.
func (c *cache) put(key string, body []byte, expires time.Time) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.pages == nil {
		c.pages = map[string]page{}
	}
	c.drop(key)
	for cost(key, body)+c.size > cacheBytes && len(c.pages) > 0 {
		oldest := ""
		for k, p := range c.pages {
			if oldest == "" || p.expires.Before(c.pages[oldest].expires) {
				oldest = k
			}
		}
		c.drop(oldest)
	}
	if cost(key, body) <= cacheBytes {
		c.pages[key] = page{body, expires}
		c.size += cost(key, body)
	}
}

func (c *cache) drop(key string) {
	if p, ok := c.pages[key]; ok {
		c.size -= cost(key, p.body)
		delete(c.pages, key)
	}
}

// cost of a page, with what a map takes for an entry.
func cost(key string, body []byte) int { return len(key) + len(body) + 512 }
