"""A trained simulator in the browser: `ups play`, the page with a service of this machine behind it."""
