"""What the site takes from the code: names, matrices, pictures, notebooks; and links to them."""
